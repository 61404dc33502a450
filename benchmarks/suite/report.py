"""Count outcomes by file and write them as a markdown table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from suite.classify import cause_of, need_of


@dataclass
class Tally:
    """Outcomes of one file's tests, with the reasons of those that did not pass."""

    passed: int = 0
    failed: int = 0
    needs: Counter = field(default_factory=Counter)
    skipped: Counter = field(default_factory=Counter)
    causes: Counter = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.passed} passed, {self.failed} failed, {self.needs.total()} not simulated, "
            f"{self.skipped.total()} skipped"
        )

    @property
    def applicable(self) -> int:
        """Tests that speak about what is simulated."""
        return self.passed + self.failed


def tally(tests: dict[str, dict]) -> Tally:
    """Judge every test of a file."""
    result = Tally()
    for test in tests.values():
        if test["outcome"] == "passed":
            result.passed += 1
        elif test["outcome"] == "skipped":
            result.skipped[test["text"].removeprefix("Skipped: ").split("\n")[0][:80]] += 1
        elif need := need_of(test["text"]):
            result.needs[need] += 1
        else:
            result.failed += 1
            result.causes[cause_of(test["text"])] += 1
    return result


def _reasons(counted: Tally) -> str:
    parts = [f"{cause} ({n})" for cause, n in counted.causes.most_common(4)]
    parts += [f"needs {need} ({n})" for need, n in counted.needs.most_common(4)]
    parts += [f"skips itself: {why} ({n})" for why, n in counted.skipped.most_common(2)]
    return "; ".join(parts).replace("|", "\\|").replace("<", "&lt;")


EXPLANATION = """\
Every file of `test/npu` and `test/distributed` runs unmodified, in a process of its own. A test counts as

* **passed** or **failed**: together the applicable tests;
* **not simulated** when its own error text proves that it needs what is not here: a function that the
  simulator refuses or lacks by name, a package or file that is not installed, or another PyTorch;
* **skipped** when it skips itself.
"""


def _needs_in_all(tallies: dict[str, Tally]) -> list[str]:
    total: Counter = Counter()
    for counted in tallies.values():
        total.update(counted.needs)
    rows = [f"| {need} | {count} |" for need, count in total.most_common()]
    return ["", "## What the tests that are not simulated need", "", "| need | tests |", "|---|---:|", *rows]


def markdown(files: dict[str, dict], heading: str) -> str:
    """The table by file with totals; `files` is the state: file -> {"tests": …, "seconds": …}."""
    tallies = {name: tally(files[name]["tests"]) for name in sorted(files)}
    passed = sum(t.passed for t in tallies.values())
    applicable = sum(t.applicable for t in tallies.values())
    needs = sum(t.needs.total() for t in tallies.values())
    skipped = sum(t.skipped.total() for t in tallies.values())
    share = f"{100 * passed / applicable:.1f} %" if applicable else "none"
    lines = [
        heading,
        "",
        f"{len(files)} files, {skipped + needs + applicable} tests. Applicable: {applicable}, "
        f"passed: {passed} (**{share}**), failed: {applicable - passed}. "
        f"Need what is not simulated: {needs}. "
        f"Skip themselves: {skipped}.",
        "",
        EXPLANATION,
        "| file | passed | failed | not simulated | skipped | reasons |",
        "|---|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {name} | {t.passed} | {t.failed} | {t.needs.total()} | {t.skipped.total()} | {_reasons(t)} |"
        for name, t in tallies.items()
    ]
    return "\n".join(lines + _needs_in_all(tallies)) + "\n"
