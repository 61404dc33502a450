"""What each DeepSpeed version accepts in its configuration, as data.

One JSON file a version lies in ``versions/``. `python -m tests.ds_configs.schema.extract` writes them from
the DeepSpeed package itself, and a test compares the installed version with its file.
"""

from ds_configs.schema.checks import refusal_of_value
from ds_configs.schema.document import LATEST, VERSIONS, Refusal, Schema, load_schema
from ds_configs.schema.key import Json, Key

__all__ = ["LATEST", "VERSIONS", "Json", "Key", "Refusal", "Schema", "load_schema", "refusal_of_value"]
