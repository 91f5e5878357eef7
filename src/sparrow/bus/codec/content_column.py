"""The `Content` column: headers and payload as one JSON text, `{"Headers": {...}, "Value": ...}`."""

from __future__ import annotations

import base64

import msgspec

_NULL = b"null"


class _Content(msgspec.Struct):
    Headers: dict[str, str | None]
    Value: msgspec.Raw = msgspec.Raw(_NULL)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Content)


def encode_content(headers: dict[str, str | None], body: bytes) -> str:
    """Encode headers and body; `body` is JSON already, or empty for null."""
    return _encoder.encode(_Content(headers, msgspec.Raw(body or _NULL))).decode()


def decode_content(content: str) -> tuple[dict[str, str | None], bytes]:
    """Return headers and body; the body of null is empty."""
    found = _decoder.decode(content)
    body = bytes(found.Value)
    return found.Headers, b"" if body == _NULL else body


def data_url_json(body: bytes, media_type: str = "application/octet-stream") -> bytes:
    """Encode a body that is not JSON as a JSON string with a data URL, so that nothing of it is lost."""
    return _encoder.encode(f"data:{media_type};base64,{base64.b64encode(body).decode()}")


def json_problem(body: bytes) -> str | None:
    """Return why the body is not JSON; None if it is. The empty body counts as JSON."""
    if not body:
        return None
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"the body is not JSON: {error}"
    return None
