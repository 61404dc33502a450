"""What each key of a DeepSpeed configuration does, in a paragraph: `ds-config explain`.

The sentences are data (``texts/*.json``), each with the place in DeepSpeed's source that it was read from;
types, defaults and history come from ``ds_configs.schema``.
"""

from ds_configs.explain.explanation import Explanation, explain_key
from ds_configs.explain.in_file import explain_document, explain_file
from ds_configs.explain.texts import KeyText, load_texts, text_of

__all__ = [
    "Explanation",
    "KeyText",
    "explain_document",
    "explain_file",
    "explain_key",
    "load_texts",
    "text_of",
]
