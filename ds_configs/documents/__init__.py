"""Configuration files as people write them: read with the place of every key, and edited in place.

What is not JSON is mended first, each fault noted; Hjson, which DeepSpeed itself reads with, then says which
of the faults DeepSpeed minds.
"""

from ds_configs.documents.document import Document, parse_document, read_document
from ds_configs.documents.edits import delete_member, insert_member, rename_key, replace_value
from ds_configs.documents.faults import Fault
from ds_configs.documents.text import Edit, apply_edits
from ds_configs.documents.tree import Member, Node

__all__ = [
    "Document",
    "Edit",
    "Fault",
    "Member",
    "Node",
    "apply_edits",
    "delete_member",
    "insert_member",
    "parse_document",
    "read_document",
    "rename_key",
    "replace_value",
]
