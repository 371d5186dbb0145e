"""Bodies as the command line prints them: as text where they are text.

Law: JSON output has the stored bytes as base64 unless another form is asked for; then
``bodyEncoding`` names the form that each body has, which is base64 where the body cannot be shown
in that form.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rocketstore.errors import FormatError
from rocketstore.format.stored_message import inflated

if TYPE_CHECKING:
    from rocketstore.cli.options import BodyForm, Output

_NOT_TEXT: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def show_body(row: dict[str, Any], form: BodyForm | None, output: Output) -> dict[str, Any]:
    """Return the row of a message (`StoredMessage.to_dict`) with its body in the form asked for."""
    if form is None and output != "table":
        return row
    raw = base64.b64decode(row["body"])
    text = None
    if form not in ("hex", "base64"):
        text = _text(raw, row)
    if output == "table":
        shown = row["body"] if form == "base64" else text
        row["body"] = f"0x{raw.hex()}" if shown is None and raw else shown or ""
    else:
        row["body"], row["bodyEncoding"] = _encoded(raw, text, row["body"], form)
    return row


def _text(raw: bytes, row: dict[str, Any]) -> str | None:
    """Return a body, inflated, if it is text: UTF-8 without control characters."""
    try:
        text = inflated(raw, row["sysFlag"], row["msgId"]).decode()
    except (FormatError, UnicodeDecodeError):
        return None
    return None if _NOT_TEXT.search(text) else text


def _encoded(
    raw: bytes, text: str | None, base64_text: str, form: BodyForm | None
) -> tuple[Any, str]:
    if form == "hex":
        return raw.hex(), form
    if text is None:
        return base64_text, "base64"
    if form == "json":
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text, "text"
        # As it was written, numbers too; only without line ends, for JSON lines.
        return msgspec.Raw(msgspec.json.format(text, indent=-1).encode()), form
    return text, "text"
