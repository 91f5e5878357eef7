"""The JSON document of an event, as it travels on Sparrow's own broker.

| Field | JSON | Meaning |
| --- | --- | --- |
| Id | string (numbers are accepted) | id of the message; a string, since browsers lose digits beyond 2^53 |
| Name | string | name of the event |
| Content | string or null | the payload as JSON text |
| Group | string | consumer group; only on received events |
| Added | string, ISO 8601, UTC | time of publishing |
| ExpiresAt | the same or null | when its row may be deleted |
| Retries | number | failed attempts before this one |
| StatusName | string | state of its row |
| Headers | object of strings and nulls | CAP's headers; if missing, they are made from Id, Name and Group |
| Version | string | version of the application's messages, as in the tables |

Unknown fields are ignored.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, UnsetType

from sparrow.bus.codec import headers as h
from sparrow.bus.states import EventStatus
from sparrow.bus.transports.spi import Envelope

DOCUMENT_VERSION_DEFAULT = "v1"


class EventDocument(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    # Fields are written in this order: a receiver recognises a document by its first field.
    id: str | int
    name: str
    content: str | None
    group: str | UnsetType | None = UNSET
    added: datetime
    expires_at: datetime | None = None
    retries: int = 0
    status_name: str = EventStatus.SCHEDULED.value
    headers: dict[str, str | None] = {}
    version: str = DOCUMENT_VERSION_DEFAULT


_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(EventDocument).decode


def encode_document(
    envelope: Envelope,
    *,
    group: str | None = None,
    expires_at: datetime | None = None,
    status: str = EventStatus.PROCESSING.value,
    version: str = DOCUMENT_VERSION_DEFAULT,
) -> bytes:
    """Encode an event; only received events have a `group`. Raises ValueError if the body is not UTF-8."""
    return _write(
        EventDocument(
            id=envelope.id,
            name=envelope.name,
            content=envelope.body.decode() or None,
            group=UNSET if group is None else group,
            added=_in_utc(envelope.added),
            expires_at=None if expires_at is None else _in_utc(expires_at),
            retries=envelope.retries,
            status_name=status,
            headers=envelope.headers,
            version=version,
        )
    )


def decode_document(encoded: bytes) -> tuple[dict[str, str | None], bytes, EventDocument]:
    """Return headers, body (JSON, empty for null) and all fields; raise ValueError if it is not such a document."""
    try:
        document = _read(encoded)
    except msgspec.MsgspecError as cause:
        raise ValueError(f"the body is not the JSON document of an event: {cause}") from cause
    headers = document.headers
    if not headers.get(h.ID) or not headers.get(h.NAME):
        known = {h.ID: headers.get(h.ID) or str(document.id), h.NAME: headers.get(h.NAME) or document.name}
        headers = {**headers, **known}
        if isinstance(document.group, str):
            headers.setdefault(h.GROUP, document.group)
    return headers, (document.content or "").encode(), document


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is UTC:
        return moment
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
