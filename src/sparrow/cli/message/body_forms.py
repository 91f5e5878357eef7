"""The forms in which `sparrow tail`, `sparrow message` and `sparrow dlq` print a body: text, JSON or hex."""

from __future__ import annotations

import json
from typing import Literal

import msgspec

from sparrow.cli.output import escape_controls, format_time
from sparrow.operations.messages import MessageView

BodyForm = Literal["json", "text", "hex"]

_HEX_BYTES_A_LINE = 16
_BINARY_SAMPLE_BYTES = 4_096


def body_form(body: bytes) -> BodyForm:
    """Return the form that shows a body best: JSON for an object or a list, text for UTF-8, otherwise hex."""
    if body[:1] in (b"{", b"["):
        try:
            msgspec.json.decode(body)
        except msgspec.DecodeError:
            pass
        else:
            return "json"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "hex"
    controls = sum(character < " " and character not in "\t\r\n" for character in text[:_BINARY_SAMPLE_BYTES])
    return "hex" if controls * 10 > len(text[:_BINARY_SAMPLE_BYTES]) else "text"


def format_body(body: bytes, form: BodyForm | None = None, *, bytes_max: int | None = None) -> str:
    """Return a body for people, in the form that fits it unless one is given. What is cut off is said."""
    chosen = form or body_form(body)
    shown = body if bytes_max is None else body[:bytes_max]
    more = f"\n… {len(body) - len(shown):,} more bytes" if len(shown) < len(body) else ""
    if chosen == "hex":
        return format_hex(shown) + more
    if chosen == "json" and not more:
        return escape_controls(json.dumps(msgspec.json.decode(body), ensure_ascii=False, indent=2))
    return escape_controls(shown.decode(errors="replace")) + more


def format_hex(body: bytes) -> str:
    """Return offsets, bytes and their ASCII characters, 16 bytes a line."""
    lines = []
    for at in range(0, len(body), _HEX_BYTES_A_LINE):
        part = body[at : at + _HEX_BYTES_A_LINE]
        characters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * _HEX_BYTES_A_LINE}} {characters}")
    return "\n".join(lines)


def format_heading(message: MessageView) -> str:
    """Return when and where a message was stored, its tag and its keys, on one line."""
    place = f"{message.broker or message.store_host}/{message.queue_id}@{message.queue_offset}"
    tag = f" tag {message.tags}" if message.tags else ""
    keys = f" keys {' '.join(message.keys)}" if message.keys else ""
    return escape_controls(f"{format_time(message.store_ms)} {place} {message.id}{tag}{keys}")
