"""References become messages of their own when they leave their store.

A reference (a record of a retry topic that says where the original lies, see `docs/delivery.md`) means something only
in the store it was written to. In another it would point at a wrong message, or at none.
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
"""No record of any store lies there."""


class ReferenceResolver:
    """Makes drafts of records: such as mean the same in every store."""

    def __init__(self, source: Store, names: Mapping[str, str]) -> None:
        self._source = source
        self._renamed = {old: new for old, new in names.items() if old != new}
        self._made = self._gone = 0

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
            # It keeps its place in the queue; readers pass over it as they did before.
            self._gone += 1
            reference.properties = set_properties(reference.properties, {PROPERTY_REFERENCE: _NOWHERE})
            return reference
        self._made += 1
        whole = record.draft_from_record(original)
        whole.reconsume_times = reference.reconsume_times
        words = {PROPERTY_RETRY_TOPIC: message.topic, PROPERTY_RESENT: "true"}
        if PROPERTY_ORIGIN_MESSAGE_ID not in message.properties:
            words[PROPERTY_ORIGIN_MESSAGE_ID] = format_offset_id(message.store_host, message.physical_offset)
        try:
            whole.properties = set_properties(whole.properties, words)
        except Refused:  # no room for what we have to say about it: the message itself is more important
            pass
        return whole

    def notes(self) -> list[str]:
        told = []
        if self._made:
            told.append(f"{self._made:,} messages that were to be resent are copies now, not references")
        if self._gone:
            told.append(f"{self._gone:,} messages that were to be resent are gone from the store")
        return told
