"""A consumer of a Kafka consumer group, with the offsets that are not acknowledged yet."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition, errors
from aiokafka.abc import ConsumerRebalanceListener

from sparrow.bus.names import is_pattern, pattern_regex
from sparrow.bus.transports.kafka.clients import stop_consumer, translated_errors
from sparrow.bus.transports.spi import BrokerDelivery, HeaderBuilder, with_foreign_headers
from sparrow.model.errors import Closed


class _State(Enum):
    OUT = "with a handler"
    DONE = "acknowledged"
    BACK = "given back, to be fetched again"


class OffsetTracker:
    """The unacknowledged offsets of one assigned partition."""

    def __init__(self) -> None:
        self._held: dict[int, _State] = {}
        """By offset, in the order of the partition; acknowledged offsets at the front are removed."""
        self._next = 0
        self._last = -1

    def take(self, offset: int) -> bool:
        """Return whether to deliver this record.

        A record that is fetched again only because an earlier one was released is not delivered twice.
        """
        state = self._held.get(offset)
        if offset < self._next or state in (_State.OUT, _State.DONE):
            return False
        assert state is not None or offset > self._last, "a new record with an older offset"
        self._last = max(offset, self._last)
        self._held[offset] = _State.OUT
        return True

    def acknowledge(self, offset: int) -> None:
        if offset in self._held:
            self._held[offset] = _State.DONE

    def release(self, offset: int) -> None:
        if offset in self._held:
            self._held[offset] = _State.BACK

    def first_released(self) -> int | None:
        return next((offset for offset, state in self._held.items() if state is _State.BACK), None)

    def advance(self) -> int | None:
        """Return the offset to commit, if it has moved: everything before it is acknowledged."""
        before = self._next
        while self._held and self._held[first := next(iter(self._held))] is _State.DONE:
            del self._held[first]
            self._next = first + 1
        return None if self._next == before else self._next


class _AckHandle(NamedTuple):
    partition: TopicPartition
    offset: int
    track: OffsetTracker


class KafkaGroupConsumer(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no types
    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        *,
        address: str,
        build: HeaderBuilder | None,
        prefetch: int,
        liveness_interval_s: float,
        timeout_s: float,
    ) -> None:
        self._consumer, self._address, self._build = consumer, address, build
        self._prefetch, self._silence_s, self._timeout_s = prefetch, liveness_interval_s, timeout_s
        self._tracks: dict[TopicPartition, OffsetTracker] = {}
        self._committing = asyncio.Lock()
        self._is_closed = False

    def begin(self, names: Sequence[str]) -> None:
        if any(map(is_pattern, names)):
            self._consumer.subscribe(pattern="|".join(map(pattern_regex, names)), listener=self)
        else:
            self._consumer.subscribe(topics=list(names), listener=self)

    async def receive(self, count_max: int) -> Sequence[BrokerDelivery]:
        while not self._is_closed:
            with translated_errors(self._address, "a fetch", self._timeout_s):
                found = await self._fetch(min(count_max, self._prefetch))
                if found is None:
                    async with asyncio.timeout(self._timeout_s):
                        await self._consumer.topics()  # raises if the server is gone
                    continue
            deliveries = [delivery for delivery in map(self._taken, found) if delivery is not None]
            if deliveries:
                return deliveries
        raise Closed("the consumer")

    async def acknowledge(self, deliveries: Sequence[BrokerDelivery]) -> None:
        async with self._committing:
            offsets: dict[TopicPartition, int] = {}
            for delivery in deliveries:
                ack_handle: _AckHandle = delivery.ack_handle
                ack_handle.track.acknowledge(ack_handle.offset)
            for partition in {delivery.ack_handle.partition for delivery in self._ours(deliveries)}:
                if (offset := self._tracks[partition].advance()) is not None:
                    offsets[partition] = offset
            if offsets:
                await self._commit(offsets)

    async def release(self, deliveries: Sequence[BrokerDelivery]) -> None:
        ours = self._ours(deliveries)
        for delivery in ours:
            delivery.ack_handle.track.release(delivery.ack_handle.offset)
        for partition in {delivery.ack_handle.partition for delivery in ours}:
            first = self._tracks[partition].first_released()
            assert first is not None
            try:
                self._consumer.seek(partition, first)
            except errors.IllegalStateError:  # the partition is moving to another member, which gets all of them
                pass

    async def close(self) -> None:
        self._is_closed = True
        self._tracks.clear()
        await stop_consumer(self._consumer)

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._tracks.clear()  # every rebalance of this protocol revokes all partitions first

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Do nothing: a tracker is created with the first record."""

    async def _fetch(self, count_max: int) -> list[ConsumerRecord] | None:
        """Return the fetched records; None if there were none for a while."""
        try:
            # The library's own timeout does not apply during a rebalance.
            async with asyncio.timeout(2 * self._silence_s):
                found = await self._consumer.getmany(timeout_ms=int(self._silence_s * 1000), max_records=count_max)
        except TimeoutError:
            return None
        return [record for records in found.values() for record in records] or None

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        try:
            with translated_errors(self._address, "a commit", self._timeout_s):
                async with asyncio.timeout(self._timeout_s):
                    await self._consumer.commit(offsets)
        except (errors.CommitFailedError, errors.IllegalStateError):
            pass  # the partitions have moved: their new owner receives the records again and drops them by id

    def _taken(self, record: ConsumerRecord) -> BrokerDelivery | None:
        partition = TopicPartition(record.topic, record.partition)
        track = self._tracks.setdefault(partition, OffsetTracker())
        if not track.take(record.offset):
            return None
        delivery = BrokerDelivery(
            name=record.topic,
            headers={name: None if value is None else value.decode(errors="replace") for name, value in record.headers},
            body=record.value or b"",
            ack_handle=_AckHandle(partition, record.offset, track),
        )
        return with_foreign_headers(delivery, f"{record.topic}-{record.partition}-{record.offset}", self._build)

    def _ours(self, deliveries: Sequence[BrokerDelivery]) -> list[BrokerDelivery]:
        """Return the deliveries whose partition has been assigned since they came."""
        return [
            delivery
            for delivery in deliveries
            if self._tracks.get(delivery.ack_handle.partition) is delivery.ack_handle.track
        ]
