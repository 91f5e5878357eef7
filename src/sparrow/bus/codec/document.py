"""An event as one JSON document: the message object of the requirement, which travels on the platform's own broker.

| Field | JSON | Meaning |
| --- | --- | --- |
| Id | string (numbers are read too) | number of the message; a string, since browsers lose digits beyond 2^53 |
| Name | string | name of the event |
| Content | string or null | the payload as JSON text |
| Group | string | consumer group; only on what was received |
| Added | string, ISO 8601, UTC | when it was published |
| ExpiresAt | the same or null | when its row may be deleted |
| Retries | number | attempts that failed before this one |
| StatusName | string | state of its row |
| Headers | object of strings and nulls | as CAP has them; may be missing, then they are made of Id, Name and Group |
| Version | string | of the application's messages, as in the tables |

Fields we do not know are passed over.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, UnsetType

from sparrow.bus import headers as h
from sparrow.bus.states import EventStatus
from sparrow.bus.transports.spi import Envelope

DOCUMENT_VERSION_DEFAULT = "v1"


class EventDocument(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    # In this order they are written: a receiver tells a document by its first field.
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
    """`group` is for what was received; what is on its way out has none. ValueError when the body is not UTF-8."""
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
    """Headers, body (JSON, empty for null) and all fields; ValueError when it is no such document."""
    try:
        document = _read(encoded)
    except msgspec.MsgspecError as cause:
        raise ValueError(f"not the document of an event: {cause}") from cause
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
