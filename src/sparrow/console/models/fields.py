"""Types of fields that many answers have: times, large numbers, text and bodies.

1. A time is an object with ms since 1970 and RFC 3339 text, so that neither programs nor people convert it.
2. A number that may pass 2^53 is text: browsers round it.
3. Text that came from clients may contain what JSON cannot (lone surrogates); such characters become U+FFFD.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

BINARY_TYPE = "application/octet-stream"
BODY_BYTES_DEFAULT = 64 * 1024
BODY_BYTES_MAX = 4 * 1024 * 1024
TIME_MS_MAX = 253_402_300_799_999
"""The last ms of the year 9999, after which RFC 3339 has no text."""


def clean_text(value: Any) -> Any:
    """Replace what UTF-8 cannot encode."""
    return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace") if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(clean_text)]
"""Text from clients."""

BigNumber = Annotated[
    int,
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^-?[0-9]+$", "examples": ["9007199254740993"]}),
]
"""A number that may pass 2^53, as text."""


class ApiModel(BaseModel):
    """The base of all answers. Values are read from the attributes of results."""

    model_config = ConfigDict(from_attributes=True, populate_by_name=True)


class ApiInput(BaseModel):
    """The base of all request bodies. Unknown members are refused: mostly they are misspelled."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=False)


class Time(ApiModel):
    """A time."""

    ms: int = Field(description="Milliseconds since 1970.", examples=[1767225600000])
    text: str = Field(description="The same time, RFC 3339 in UTC.", examples=["2026-01-01T00:00:00.000Z"])

    @model_validator(mode="before")
    @classmethod
    def _of_ms(cls, value: Any) -> Any:
        return {"ms": value, "text": format_time(value)} if isinstance(value, int) else value


def format_time(time_ms: int) -> str:
    """Return RFC 3339 text; an impossible time of a client becomes the nearest possible one."""
    bounded = min(max(time_ms, 0), TIME_MS_MAX)
    seconds, ms = divmod(bounded, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"


class BodyView(ApiModel):
    """The body of a message, or its beginning: as text if it is UTF-8, otherwise as base64."""

    size: int = Field(description="Bytes of the whole body.")
    truncated: bool = Field(description="Whether only its beginning is here.")
    content_type: str = Field(description="Guessed: application/json, text/plain or application/octet-stream.")
    masked: bool = Field(default=False, description="Whether the console hides it: neither text nor base64 is here.")
    text: str | None = None
    base64: str | None = None


def show_body(body: bytes, bytes_max: int) -> BodyView:
    """Return a body for an answer, cut after `bytes_max` bytes."""
    shown, is_cut = body[:bytes_max], len(body) > bytes_max
    text = _text(shown, is_cut=is_cut)
    if text is None:
        return BodyView(
            size=len(body),
            truncated=is_cut,
            content_type=BINARY_TYPE,
            base64=base64.b64encode(shown).decode(),
        )
    kind = "application/json" if not is_cut and _is_json(text) else "text/plain"
    return BodyView(size=len(body), truncated=is_cut, content_type=kind, text=text)


def _text(shown: bytes, *, is_cut: bool) -> str | None:
    try:
        return shown.decode()
    except UnicodeDecodeError as error:
        if is_cut and error.start >= len(shown) - 3 and error.reason == "unexpected end of data":
            return shown[: error.start].decode()  # the cut is inside a character
        return None


def _is_json(text: str) -> bool:
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
