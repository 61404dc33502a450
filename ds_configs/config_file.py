"""Reading a configuration as HF reads it: strict JSON, one object."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

from ds_configs.errors import DsConfigError

STDIN = "-"


def read_config(source: str) -> dict[str, Any]:
    """Return the configuration in file ``source``, or on standard input for ``-``.

    Raises:
        DsConfigError: it cannot be read, is not strict JSON, names a key twice, or is no object.
    """
    try:
        data = sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
        config = json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except OSError as error:
        raise DsConfigError(f"{source} cannot be read: {error.strerror}; give a configuration file") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DsConfigError(
            f"{source} is not the strict JSON that HF reads ({error}); `ds-config lint` says where and mends "
            "it"
        ) from None
    if not isinstance(config, dict):
        raise DsConfigError(
            f"{source} holds {json.dumps(config)[:40]}, not a JSON object; give a configuration"
        )
    return config


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise DsConfigError(f"the key {key!r} is there twice, which DeepSpeed refuses; keep one of them")
        values[key] = value
    return values


def _no_constant(name: str) -> NoReturn:
    raise DsConfigError(f"the configuration holds {name}, which is no JSON number; write a number")
