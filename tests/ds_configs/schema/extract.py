"""Writes the schema of a DeepSpeed version from the package itself: a developer's tool.

    python -m tests.ds_configs.schema.extract                       # the installed version
    PYTHONPATH=UNPACKED_SDIST python -m tests.ds_configs.schema.extract   # another one

It reads the pydantic models, hands DeepSpeedConfig a dict that records what is looked up by hand, and takes
what neither can tell (types of hand-read keys, conditions) from the two JSON files beside it. A key or a
validator that those files do not describe is an error that names it.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.ds_configs.schema.choices import current_choices
from tests.ds_configs.schema.models import Fields, is_strict, keys_of, validators_of
from tests.ds_configs.schema.parameters import optimizer_variants, scheduler_variants
from tests.ds_configs.schema.tracing import ABSENT, Trace, TracedDict
from tests.ds_configs.schema.unread import reads_attribute, reads_item

HERE = Path(__file__).parent
HAND_READ = json.loads((HERE / "hand_read.json").read_text(encoding="utf-8"))
MODELS = json.loads((HERE / "model_keys.json").read_text(encoding="utf-8"))
VERSIONS = HERE.parents[2] / "ds_configs" / "schema" / "versions"
EXTRACTORS_OWN = ("reader", "unread", "in", "choices_of")
Keys = dict[str, Fields]


class Undescribed(Exception):
    """DeepSpeed does something that the files beside this program do not describe."""


def extract() -> dict[str, Any]:
    """Return the content of the data file of the DeepSpeed version that is importable."""
    import deepspeed
    from deepspeed.runtime import config

    package = Path(deepspeed.__file__).parent
    version = deepspeed.__version__.split("+")[0].strip()
    keys = _hand_read(config, version, package)
    for section, where in MODELS["models"].items():
        _add_model(keys, section, where, version)
    _add_removed(keys, config)
    _add_unread(keys, package)
    for name, condition in MODELS["ignored"].items():
        if name in keys:
            keys[name]["ignored"] = condition
    variants = {
        "optimizer.params": optimizer_variants(config.DEEPSPEED_OPTIMIZERS),
        "scheduler.params": scheduler_variants(),
    }
    return {"version": version, "keys": dict(sorted(keys.items())), "variants": variants}


def _hand_read(config: Any, version: str, package: Path) -> Keys:
    """The keys that DeepSpeedConfig looks up itself, and those that other code does."""
    trace = Trace()
    gone = getattr(config, "_REMOVED_TOP_LEVEL_CONFIG_KEYS", {})
    for probe in HAND_READ["probes"]:
        kept = {name: value for name, value in probe.items() if name not in gone}
        config.DeepSpeedConfig(TracedDict(kept, trace))
    keys: Keys = {}
    for name, default in trace.defaults.items():
        if name.partition(".")[0] in gone or _is_below_open(name):
            continue
        described = HAND_READ["keys"].get(name)
        if described is None:
            raise Undescribed(f"DeepSpeed {version} reads {name} by hand: describe it in hand_read.json")
        keys[name] = {**_own(described, version), "source": trace.sources[name]}
        if "choices_of" in described:
            keys[name]["choices"] = current_choices(described["choices"], described["choices_of"], package)
        if default is not ABSENT and default != {} and "default" not in described:
            keys[name]["default"] = default
    for name, default in config.get_pipeline_config({}).items():
        described = HAND_READ["keys"].get(f"pipeline.{name}")
        if described is None:
            raise Undescribed(
                f"DeepSpeed {version} has a default for pipeline.{name}: describe it in hand_read.json"
            )
        keys[f"pipeline.{name}"] = {
            **_own(described, version),
            "default": default,
            "source": "runtime/config.py",
        }
    for name, described in HAND_READ["keys"].items():
        file, text = described.get("reader", ("", ""))
        if file and (package / file).exists() and text in (package / file).read_text(encoding="utf-8"):
            keys[name] = {**_own(described, version), "source": file}
    return keys


def _is_below_open(name: str) -> bool:
    parts = name.split(".")
    above = (".".join(parts[:length]) for length in range(1, len(parts)))
    return name not in HAND_READ["keys"] and any(HAND_READ["keys"].get(up, {}).get("open") for up in above)


def _own(described: Fields, version: str) -> Fields:
    """The description without the extractor's own fields, for this version."""
    minor = version.rpartition(".")[0]
    fields = {key: value for key, value in described.items() if key not in EXTRACTORS_OWN}
    return {**fields, **described.get("in", {}).get(minor, {})}


def _add_model(keys: Keys, section: str, where: str, version: str) -> None:
    """Replace what the trace saw below ``section`` by the fields of its model."""
    module, _, name = where.partition(":")
    try:
        model = getattr(import_module(module), name, None)
    except ModuleNotFoundError:
        model = None
    if model is None or section not in keys:
        return  # read by hand in this version, or not at all
    for known in [key for key in keys if key.startswith(f"{section}.")]:
        del keys[known]
    keys[section]["strict"] = is_strict(model)
    keys[section]["source"] = module.partition(".")[2].replace(".", "/") + ".py"
    found = keys_of(model, section)
    for validator in validators_of(model):
        if validator not in HAND_READ["validators"]:
            raise Undescribed(f"the validator {validator} below {section} is not described in hand_read.json")
        for key, fields in HAND_READ["validators"][validator].items():
            if key in found:
                found[key].update(_own(fields, version))
    for fields in found.values():
        new = fields.get("new_path")
        if new:
            fields["new_path"] = found[f"{section}.{new}"].get("alias_of", f"{section}.{new}")
    keys.update(found)
    if section == "bf16" and "bfloat16" in keys:
        keys["bfloat16"]["strict"] = is_strict(model)
        aliases = {
            f"bfloat16.{key.partition('.')[2]}": {**fields, "alias_of": key} for key, fields in found.items()
        }
        keys.update(aliases)


def _add_removed(keys: Keys, config: Any) -> None:
    for name, reason in getattr(config, "_REMOVED_TOP_LEVEL_CONFIG_KEYS", {}).items():
        keys[name] = {"types": [], "removed": reason.strip(), "removed_by": "parser"}
    for name, reason in getattr(config, "_REMOVED_ZERO_CONFIG_KEYS", {}).items():
        keys[f"zero_optimization.{name}"] = {"types": [], "removed": reason.strip(), "removed_by": "parser"}


def _add_unread(keys: Keys, package: Path) -> None:
    """Mark what is parsed and then never read."""
    suspects = {name: key["unread"] for name, key in HAND_READ["keys"].items() if "unread" in key}
    for name, suspect in {**suspects, **MODELS["unread"]}.items():
        if name not in keys:
            continue
        if "item" in suspect:
            is_read = reads_item(package, suspect["item"], name.split(".")[-2])
        else:
            is_read = reads_attribute(package, suspect["attribute"], suspect.get("through", ""))
        if not is_read:
            keys[name].update(consumed=False, ignored="always: DeepSpeed parses it and never reads it")


def write(data: dict[str, Any], file: Path) -> None:
    """Write ``data`` with one key a line, so that a change reads as one."""
    lines = [f'{{"version": {json.dumps(data["version"])},', '"keys": {']
    lines += _lines(data["keys"])
    lines.append('},\n"variants": {')
    blocks = []
    for above, kinds in data["variants"].items():
        inner = ",\n".join(
            f"{json.dumps(kind)}: {{\n" + "\n".join(_lines(keys)) + "\n}" for kind, keys in kinds.items()
        )
        blocks.append(f"{json.dumps(above)}: {{\n{inner}\n}}")
    lines += [",\n".join(blocks), "}}"]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _lines(keys: Keys) -> list[str]:
    rows = [f"{json.dumps(name)}: {json.dumps(fields, ensure_ascii=False)}" for name, fields in keys.items()]
    return [f"{row}," for row in rows[:-1]] + rows[-1:]


def drift(kept: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return how ``found`` differs from ``kept``, one line a key."""
    before, after = _flat(kept), _flat(found)
    lines = [f"{name}: gone from DeepSpeed" for name in before if name not in after]
    lines += [f"{name}: new in DeepSpeed" for name in after if name not in before]
    for name in before.keys() & after.keys():
        fields = before[name].keys() | after[name].keys()
        for field in sorted(field for field in fields if before[name].get(field) != after[name].get(field)):
            lines.append(f"{name}: {field} was {before[name].get(field)!r}, is {after[name].get(field)!r}")
    return sorted(lines)


def _flat(data: dict[str, Any]) -> Keys:
    keys = dict(data["keys"])
    for above, kinds in data["variants"].items():
        for kind, parameters in kinds.items():
            keys.update({f"{above}.{name} of {kind}": fields for name, fields in parameters.items()})
    return keys


def main(argv: list[str]) -> int:
    """Write the file of the importable version, or with --check say how it differs: status 1 then."""
    found = json.loads(json.dumps(extract()))
    target = VERSIONS / f"{found['version']}.json"
    if "--check" not in argv:
        write(found, target)
        return 0
    if not target.exists():
        print(f"DeepSpeed {found['version']} has no file: run this program without --check to write it")
        return 1
    lines = drift(json.loads(target.read_text(encoding="utf-8")), found)
    print("\n".join(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
