"""Resolution of references in a copy: a reference becomes a complete message.

A reference (a record of a retry topic that contains the position of the original, see `docs/delivery.md`) is valid only
in its own store. In another store it would point to a wrong message, or to none.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparrow.model.errors import Refused
from sparrow.model.message import Draft
from sparrow.model.protocol import (
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REFERENCE,
    PROPERTY_RESENT,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQUE_KEY,
    RETRY_TOPIC_PREFIX,
)
from sparrow.store.spi import Store
from sparrow.wire import record
from sparrow.wire.message_ids import format_offset_id
from sparrow.wire.properties import property_value, set_properties

_MARK = PROPERTY_REFERENCE.encode() + b"\x01"
_NOWHERE = str(1 << 62)
"""A physical offset that no store has."""


class ReferenceResolver:
    """Turns records into drafts that are valid in every store."""

    def __init__(self, source: Store, names: Mapping[str, str]) -> None:
        self._source = source
        self._renamed = {old: new for old, new in names.items() if old != new}
        self._resolved_count = self._missing_count = 0

    async def draft(self, raw: bytes | memoryview, topic: str) -> Draft:
        made = record.draft_from_record(raw)
        if not topic.startswith(RETRY_TOPIC_PREFIX):
            return made
        if _MARK in made.properties and (place := property_value(made.properties, PROPERTY_REFERENCE)) is not None:
            made = await self._resolved(made, int(place) if place.isdecimal() else -1)
        own_topic = property_value(made.properties, PROPERTY_RETRY_TOPIC)
        if own_topic in self._renamed:
            made.properties = set_properties(made.properties, {PROPERTY_RETRY_TOPIC: self._renamed[own_topic]})
        return made

    async def _resolved(self, reference: Draft, place: int) -> Draft:
        original = await self._source.record_at(place)
        message = record.decode(original, verify_crc=False, expand=False) if original is not None else None
        if (
            original is None
            or message is None
            or message.topic != property_value(reference.properties, PROPERTY_RETRY_TOPIC)
            or message.unique_key != property_value(reference.properties, PROPERTY_UNIQUE_KEY)
        ):
            # The original is gone. The reference keeps its place in the queue, and readers skip it as before.
            self._missing_count += 1
            reference.properties = set_properties(reference.properties, {PROPERTY_REFERENCE: _NOWHERE})
            return reference
        self._resolved_count += 1
        whole = record.draft_from_record(original)
        whole.reconsume_times = reference.reconsume_times
        values = {PROPERTY_RETRY_TOPIC: message.topic, PROPERTY_RESENT: "true"}
        if PROPERTY_ORIGIN_MESSAGE_ID not in message.properties:
            values[PROPERTY_ORIGIN_MESSAGE_ID] = format_offset_id(message.store_host, message.physical_offset)
        try:
            whole.properties = set_properties(whole.properties, values)
        except Refused:  # the properties are full: the message itself is more important
            pass
        return whole

    def notes(self) -> list[str]:
        notes = []
        if self._resolved_count:
            notes.append(
                f"{self._resolved_count:,} references in retry topics were replaced by copies of their messages"
            )
        if self._missing_count:
            notes.append(f"{self._missing_count:,} references in retry topics point to messages that no longer exist")
        return notes
