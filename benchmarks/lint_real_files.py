"""Compare `ds-config lint` with what the loaders said of real files: python benchmarks/lint_real_files.py DIR

DIR holds the files and an INDEX.json with the verdicts of json, hjson, HfDeepSpeedConfig and DeepSpeedConfig
(of DeepSpeed 0.19.8, one rank), and of DeepSpeedConfig after HF's "auto" rules. For each file one line says
whether lint agrees on each and names the recorded reason; then the file is mended and goes through the
installed loaders. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hjson

from ds_configs.documents import read_document
from ds_configs.lint import Options, Report, fix_document, lint_document
from tests.ds_configs.lint.flags import flags_of, total_steps
from tests.ds_configs.oracle import Oracle

# A recorded message, and the codes that name its reason.
REASONS = (
    (r"'>' not supported between|can't multiply sequence", {"DSC211"}),
    (r"Either train_batch_size or train_micro", {"DSC301"}),
    (r"Check batch related parameters", {"DSC302", "DSC303"}),
    (r"has been removed", {"DSC201"}),
    (r"Extra inputs are not permitted", {"DSC202", "DSC212"}),
    (r"valid integer, got a number with a fractional part", {"DSC209"}),
    (r"stage\s+Input should be 0, 1, 2", {"DSC117", "DSC203", "DSC205"}),
    (r"Extra data", {"DSC108", "DSC109", "DSC110"}),
    (r"Expecting value", {"DSC117"}),
    (r"Expecting property name enclosed", {"DSC111", "DSC112"}),
    (r"Please specify the ZeRO optimization config", {"DSC702"}),
)
FIELD = re.compile(r"validation errors? for \w+\s+(\w+)")
PARSER = ("reader", "parser")


@dataclass
class Comparison:
    """One file: what agrees, and what does not."""

    name: str
    agreed: list[str] = field(default_factory=list)
    differ: list[str] = field(default_factory=list)

    def verdict(self, loader: str, said: bool, recorded: bool) -> None:
        """Note whether lint's verdict is the recorded one."""
        (self.agreed if said == recorded else self.differ).append(
            loader if said == recorded else f"{loader}: lint {_word(said)}, recorded {_word(recorded)}"
        )

    def reason(self, message: str, report: Report, *stops: str) -> None:
        """Note whether the report names the reason of a recorded refusal."""
        wanted = next((codes for pattern, codes in REASONS if re.search(pattern, message)), None)
        found = report.refusals(*stops)
        key = FIELD.search(message)
        named = [
            each for each in found if wanted and each.code in wanted and (not key or key.group(1) in each.key)
        ]
        if named:
            self.agreed.append(f"reason {named[0].code}")
        else:
            self.differ.append(f"reason of {message[:60]!r} is not among {[each.code for each in found]}")


def _word(accepted: bool) -> str:
    return "accepts" if accepted else "refuses"


def compare(path: Path, recorded: dict[str, Any]) -> Comparison:
    """Compare lint with the verdicts of one file."""
    comparison = Comparison(path.name)
    document = read_document(str(path))
    alone = lint_document(document, Options("deepspeed", 1))
    under_hf = lint_document(document, Options("hf", 1))
    loaders = recorded["loaders"]
    comparison.verdict("json", document.hf_reads, loaders["json"] == "ok")
    comparison.verdict("hjson", not document.deepspeed_error, loaders["hjson"] == "ok")
    comparison.verdict("HF", document.hf_reads, loaders["HfDeepSpeedConfig"] == "ok")
    if loaders["HfDeepSpeedConfig"] != "ok":
        comparison.reason(loaders["HfDeepSpeedConfig"], under_hf, "reader")
    raw = loaders["DeepSpeedConfig"]
    comparison.verdict("DeepSpeed", not alone.refusals(*PARSER), raw == "ok")
    if raw != "ok":
        comparison.reason(raw, alone, *PARSER)
    after = recorded["after_hf_auto"]
    if after == "unparseable":
        comparison.verdict("after auto", not alone.refusals("reader"), False)
        return comparison
    _after_auto(comparison, after, under_hf, alone)
    return comparison


def _after_auto(comparison: Comparison, after: list[str], under_hf: Report, alone: Report) -> None:
    """Compare what came after HF's rules; the recorder read with Hjson, so only its faults count there."""
    refused = [*under_hf.refusals("parser"), *alone.refusals("reader")]
    comparison.verdict("after auto", not refused, "DeepSpeedConfig ok" in after)
    plugin = [message for message in after if message.startswith("DeepSpeedPlugin:")]
    comparison.verdict("accelerate", not under_hf.refusals("accelerate"), not plugin)
    for message in after:
        if message.startswith("HF finalize:"):
            compared = {each.key for each in under_hf.findings if each.code == "DSC701"}
            for key in re.findall(r"- ds ([\w.]+)=", message):
                comparison.verdict(f"compares {key}", key in compared, True)
        elif message != "DeepSpeedConfig ok" and not message.startswith("auto left"):
            comparison.reason(message, under_hf, "accelerate" if message in plugin else "parser", "reader")


def mend(path: Path, oracle: Oracle, target: str | None) -> str:
    """Mend one file for ``target`` (None: what it is meant for) and return what became of it."""
    options = Options(target, world_size=1)
    document = read_document(str(path))
    before = lint_document(document, options)
    stops = (*PARSER, "accelerate") if before.target_name == "hf" else PARSER
    if not before.refusals(*stops):
        return "accepted"
    fixed = fix_document(document, options)
    left = fixed.after.refusals(*stops)
    if not left:
        said = _loaded(fixed.text, before.target_name, oracle)
        return (
            f"FAILS after --fix: {said}"
            if said
            else f"mended for {before.target_name}, and its loader takes it"
        )
    why = "; ".join(dict.fromkeys(f"{each.code} {each.reason}" for each in left))
    bold = fix_document(document, options, unsafe=True)
    if bold.after.refusals(*stops):
        return f"cannot be mended: {why}"
    said = _loaded(bold.text, before.target_name, oracle)
    return (
        f"FAILS after --unsafe-fixes: {said}" if said else f"needs a decision (--unsafe-fixes passes): {why}"
    )


def _loaded(text: str, target: str, oracle: Oracle) -> str:
    """Return what the real loaders say against ``text``; "" for nothing."""
    if target == "deepspeed":
        return oracle.deepspeed(hjson.loads(text))
    config = json.loads(text)
    run, total = flags_of(config), total_steps(config)
    filled = oracle.ask("hf", config=config, run=run, model={"hidden_size": 1024}, total=total)
    return filled if isinstance(filled, str) else oracle.deepspeed(filled)


def main() -> int:
    """Print a line a file, then the totals."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", type=Path, help="folder of the files and INDEX.json")
    folder = parser.parse_args().cases
    index = json.loads((folder / "INDEX.json").read_text(encoding="utf-8"))
    oracle = Oracle()
    agreeing, outcomes, for_hf = 0, [], []
    for recorded in index:
        comparison = compare(folder / recorded["n"], recorded)
        outcome = mend(folder / recorded["n"], oracle, None)
        under_hf = mend(folder / recorded["n"], oracle, "hf")
        agreeing += not comparison.differ
        outcomes.append(outcome)
        for_hf.append(under_hf)
        verdict = "agrees" if not comparison.differ else "DIFFERS: " + "; ".join(comparison.differ)
        print(
            f"{comparison.name}: {verdict} ({', '.join(comparison.agreed)}); {outcome}; for hf: {under_hf}",
            flush=True,
        )
    oracle.close()
    print(f"{agreeing} of {len(index)} files agree in every verdict and reason")
    failed = [_totals("for the loader each is meant for", outcomes), _totals("with --for hf", for_hf)]
    return int(agreeing < len(index) or any(failed))


def _totals(what: str, outcomes: list[str]) -> int:
    """Print how many files were mended, and return how many failed after it."""
    mended, failed, decide = (
        sum(outcome.startswith(word) for outcome in outcomes) for word in ("mended", "FAILS", "needs")
    )
    print(
        f"{what}: {sum(outcome == 'accepted' for outcome in outcomes)} accepted as they are, "
        f"{mended + failed} mendable, {mended} of them pass after --fix, {decide} more with --unsafe-fixes"
    )
    return failed


if __name__ == "__main__":
    sys.exit(main())
