"""What each DeepSpeed version accepts in its configuration, as data.

One JSON file a version lies in ``versions/``; `python -m tests.ds_configs.schema.extract` writes them from the
DeepSpeed package itself, and a test compares the installed version with its file.
"""

from ds_configs.schema.document import LATEST, VERSIONS, Schema, load_schema
from ds_configs.schema.key import Json, Key

__all__ = ["LATEST", "VERSIONS", "Json", "Key", "Schema", "load_schema"]
