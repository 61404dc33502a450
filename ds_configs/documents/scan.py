"""The pieces that almost-JSON is made of, found at a place of a text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import hjson

BLANK = re.compile(r"[\s\u00a0\u3000\u200b\ufeff]+")
COMMENT = re.compile(r"//[^\r\n]*|#[^\r\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
PLACEHOLDER = re.compile(
    r"\$\{[^{}\r\n]*\}|\{\{[^{}\r\n]*\}\}|\{%[^\r\n]*?%\}|<[^<>\r\n]+>|\$[A-Za-z_]\w*|%\([^()\r\n]*\)[sdf]"
    r"|\.\.\.|…|\{[A-Za-z_]\w*\}|@[A-Za-z_]\w*@|%[A-Za-z_]\w*%|__[A-Z]\w*__|\$\([^()\r\n]*\)"
)
JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
# 1_000, .5, 5., +5, 007: numbers in Python, YAML or by habit, but not in JSON.
LOOSE_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?")
HEX_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+")
# 500,000,000 and 0,001: commas within a number, where a key would have to follow them.
WITH_COMMAS = re.compile(r"([+-]?)(\d+)((?:,\d+)+)(?=\s*(?:[,;}\r\n]|//|#|/\*|\Z))")
ENDLESS = re.compile(r"[+-]?(?:NaN|nan|Infinity|Inf|inf|\.inf|\.nan)")
KEY_WORD = re.compile(r"[^\s:=,;{}\[\]\"'#，：；]+")
# A bare value ends at a comma, a closing bracket, a comment or the line's end.
VALUE_WORD = re.compile(r"(?:(?!//|#|/\*)[^,;{}\[\]\"\r\n，；])+")
PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null", "TRUE": "true", "FALSE": "false"}
JSON_LITERALS = ("true", "false", "null")
STRING = re.compile(r'"(?:[^"\\\r\n]|\\.)*"')
SINGLE = re.compile(r"'((?:[^'\\\r\n]|\\.)*)'")
TRIPLE = re.compile(r"'''(.*?)'''|\"\"\"(.*?)\"\"\"", re.DOTALL)
CURLED = re.compile(r"[“”„«]([^“”„«»\r\n]*)[“”»]|[‘’]([^‘’\r\n]*)[‘’]")
BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
SQUARE = {"(": "[", ")": "]"}
WIDE = {"，": ",", "：": ":", "；": ",", ";": ",", "｛": "{", "｝": "}", "［": "[", "］": "]", "、": ","}


@dataclass(frozen=True)
class Piece:
    """A string or bare word: where it ends, its JSON spelling, and what is wrong ("" if it is JSON)."""

    end: int
    json: str
    kind: str = ""
    reason: str = ""
    safe: bool = True


def quote(text: str) -> str:
    """Return ``text`` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def scan_string(text: str, at: int) -> Piece | None:
    """Return the quoted string that starts at ``at``, in whichever quotes, or None."""
    triple = TRIPLE.match(text, at)
    if triple:
        content = triple.group(2) if triple.group(1) is None else _hjson_lines(text, at, triple.group())
        return Piece(triple.end(), quote(content), "quotes", "JSON has no triple quotes")
    whole = STRING.match(text, at)
    if whole:
        return _double_quoted(whole)
    single = SINGLE.match(text, at)
    if single:
        content = re.sub(r"\\(['\\])", r"\1", single.group(1))
        return Piece(single.end(), quote(content), "quotes", "JSON strings stand in double quotes")
    curled = CURLED.match(text, at)
    if curled:
        content = curled.group(1) if curled.group(1) is not None else curled.group(2)
        return Piece(curled.end(), quote(content), "quotes", "typographic quotes are not JSON's")
    return _unclosed(text, at) if text[at : at + 1] in ('"', "'") else None


def _hjson_lines(text: str, at: int, piece: str) -> str:
    """Return what ``'''`` quotes, without the indentation that Hjson takes off: only it has this form."""
    column = at - max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) - 1
    (content,) = hjson.loads(f"[\n{' ' * column}{piece}\n]")
    return content


def _double_quoted(match: re.Match[str]) -> Piece:
    raw = match.group()
    try:
        json.loads(raw)
    except ValueError:
        mended = BAD_ESCAPE.sub(r"\\\\", raw).replace("\t", "\\t")
        try:
            json.loads(mended)
        except ValueError:  # a control character
            mended = quote("".join(char for char in raw[1:-1] if char.isprintable()))
        reason = "a backslash or a control character in a string must be escaped"
        return Piece(match.end(), mended, "escape", reason)
    return Piece(match.end(), raw)


def _unclosed(text: str, at: int) -> Piece:
    line = re.compile(r"[^\r\n]*").match(text, at + 1)
    content = (line.group() if line else "").rstrip()
    content = content.rstrip(",}]").rstrip() if content.rstrip(",}] ") else content
    end = at + 1 + len(content)
    return Piece(end, quote(content), "unclosed_string", "the string does not end on its line", safe=False)


def scan_key_word(text: str, at: int) -> Piece | None:
    """Return the unquoted key that starts at ``at``, or None."""
    holder = PLACEHOLDER.match(text, at)
    if holder and text[holder.end() : holder.end() + 1] in (":", " ", "="):
        return Piece(
            holder.end(), quote(holder.group()), "placeholder", _unfilled(holder.group()), safe=False
        )
    word = KEY_WORD.match(text, at)
    if not word:
        return None
    return Piece(
        word.end(), quote(word.group()), "unquoted_key", f"the key {word.group()} stands without quotes"
    )


def scan_value_word(text: str, at: int) -> Piece | None:
    """Return the bare value that starts at ``at`` (number, literal, placeholder, word), or None."""
    holder = PLACEHOLDER.match(text, at)
    if holder and re.compile(r"\s*(?:[,;}\]\r\n#，]|//|/\*|\Z)").match(text, holder.end()):
        return Piece(
            holder.end(), quote(holder.group()), "placeholder", _unfilled(holder.group()), safe=False
        )
    found = VALUE_WORD.match(text, at)
    if not found or not found.group().strip():
        return None
    word = found.group().rstrip()
    if "(" not in word:  # the end of a tuple
        word = word.partition(")")[0].rstrip() or word
    return _classify(word, at + len(word))


def scan_number_with_commas(text: str, at: int) -> Piece | None:
    """Return the number with thousands' separators or a decimal comma that starts at ``at``, or None.

    Only a value of an object can be told to be one; in a list the commas part its items.
    """
    found = WITH_COMMAS.match(text, at)
    if not found:
        return None
    sign, whole, rest = found.groups()
    parts = rest[1:].split(",")
    grouped = whole.strip("0") != "" and len(whole) <= 3 and all(len(part) == 3 for part in parts)
    if not grouped and len(parts) > 1:
        return None
    number = _plain_number(sign + whole + ("" if grouped else ".") + "".join(parts))
    reason = f"JSON does not write a number as {found.group()}"
    return Piece(found.end(), number, "number_form", reason, safe=False)


def _classify(word: str, end: int) -> Piece:
    if word in JSON_LITERALS or JSON_NUMBER.fullmatch(word):
        return Piece(end, word)
    if word in PYTHON_LITERALS:
        return Piece(end, PYTHON_LITERALS[word], "python_literal", f"{word} is Python, not JSON")
    if ENDLESS.fullmatch(word):
        return Piece(end, "null", "not_a_number", f"{word} is no JSON number", safe=False)
    if HEX_NUMBER.fullmatch(word):
        return Piece(
            end, str(int(word, 16)), "number_form", f"JSON has no hexadecimal numbers such as {word}"
        )
    if LOOSE_NUMBER.fullmatch(word) and any(char.isdigit() for char in word):
        return Piece(end, _plain_number(word), "number_form", f"JSON does not write a number as {word}")
    if PLACEHOLDER.search(word):
        return Piece(end, quote(word), "placeholder", _unfilled(word), safe=False)
    if re.fullmatch(r"[\d_.eE]+(?:\s*[*+/-]+\s*[\d_.eE]+)+", word):
        return Piece(end, quote(word), "expression", f"JSON does not compute {word}", safe=False)
    one = not re.search(r"[\s:]", word) or word.count(":") == 1 and re.match(r"[\w+]+://", word) is not None
    return Piece(end, quote(word), "unquoted_value", f"the text {word} stands without quotes", safe=one)


def _plain_number(word: str) -> str:
    sign = "-" if word.startswith("-") else ""
    mantissa, mark, exponent = word.lstrip("+-").replace("_", "").lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    return sign + (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "") + mark + exponent


def _unfilled(text: str) -> str:
    return f"{text} is a placeholder that nothing has filled in"
