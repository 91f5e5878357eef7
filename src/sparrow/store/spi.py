"""The store interface. Two engines implement it, and one conformance suite tests both.

1. Offsets of a queue are dense, start at 0 and never go back; a message that was read once reads the same ever after.
2. A batch is appended completely or not at all, with consecutive offsets.
3. An append returns once it is as safe as the store's policy says. Readers see only messages that are at least as safe.
4. State (topics, groups, tokens, committed offsets, marks, the ledger) outlives the messages around it.
5. An atomic append covers any number of queues; its records and its ledger entry are stored together or not at all.

Methods whose names end in `_nowait` return without waiting for a disk or a database.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol, TypedDict, Unpack

import msgspec

from sparrow.model.access.token import Token
from sparrow.model.errors import NoFollower
from sparrow.model.message import Draft
from sparrow.model.queue import PhysicalOffset, Queue, QueueBounds, QueueOffset
from sparrow.model.topic import Group, Topic
from sparrow.settings import LogSettings
from sparrow.telemetry.histogram import DurationHistogram
from sparrow.wire.queue_batches import QueueBatch

STATE_TOPIC = "rmq_sys_SPARROW_STATE"
"""The topic in which a log store keeps its own state, tokens included. Clients never get its records."""


class AppendResult(msgspec.Struct, frozen=True, gc=False):
    """The position of an appended batch."""

    queue: Queue
    offset: QueueOffset
    """Of the first message; the others follow."""
    physical_offsets: Sequence[PhysicalOffset]
    end: PhysicalOffset
    """The end of the last record: durable once the store's durable watermark has reached it."""
    store_ms: int


class Slice(msgspec.Struct, frozen=True):
    """Records as they are stored. `buffers` may be sent unchanged, one after the other."""

    buffers: Sequence[memoryview]
    sizes: Sequence[int]
    """The size of each record, in order: with them a columnar reader need not parse record after record."""
    next_offset: QueueOffset
    """The offset after the last entry examined, whether it matched or not."""
    bounds: QueueBounds

    def tobytes(self) -> bytes:
        return b"".join(self.buffers)

    def records(self) -> Iterator[memoryview]:
        """Yield the records one by one."""
        data, at = memoryview(self.tobytes()), 0
        for size in self.sizes:
            yield data[at : at + size]
            at += size


class AtEnd(msgspec.Struct, frozen=True):
    """No message has this offset yet: wait for the queue to grow."""

    bounds: QueueBounds


class Moved(msgspec.Struct, frozen=True):
    """The offset is outside the queue; continue reading at `to`."""

    to: QueueOffset
    bounds: QueueBounds


ReadResult = Slice | AtEnd | Moved


class ReadLimits(TypedDict, total=False):
    """How much one read may return."""

    count_max: int
    """Messages; 32 by default."""
    bytes_max: int
    """256 KiB by default; one message is always returned, whatever its size."""
    tags_codes: frozenset[int] | None
    """Return only messages with one of these tags codes; None for all."""


class Catalog(Protocol):
    """Topics and consumer groups."""

    async def list_topics(self) -> Mapping[str, Topic]:
        """Return all topics by name."""
        ...

    async def put_topic(self, topic: Topic) -> None:
        """Create a topic, or change its configuration."""
        ...

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, its messages, its queues and the offsets that groups have committed on it."""
        ...

    async def list_groups(self) -> Mapping[str, Group]:
        """Return all groups by name."""
        ...

    async def put_group(self, group: Group) -> None:
        """Create a group, or change its configuration."""
        ...

    async def delete_group(self, name: str, *, keeps_offsets: bool = False) -> None:
        """Delete a group's configuration and, unless `keeps_offsets`, its committed offsets.

        A group that is created again continues at the offsets that were kept.
        """
        ...


class Tokens(Protocol):
    """Access tokens. A token is never deleted: messages refer to it by number."""

    async def all(self) -> Mapping[str, Token]:
        """Return every token ever issued, by name, revoked ones included."""
        ...

    def all_nowait(self) -> Mapping[str, Token]:
        """Return the tokens known to this process; the mapping is kept up to date."""
        ...

    def id_nowait(self, name: str) -> int:
        """Return the number of a token known to this process; 0 if there is none."""
        ...

    async def put(self, token: Token, *, before: Token | None = None, replaces_secret: bool = False) -> None:
        """Issue a token, change its permissions, or revoke it.

        `before` is the token that the change was made of: if it is another one by now, because another broker has
        changed it, `Busy` is raised and nothing changes.

        If another broker has issued the name with another secret, that one counts, unless `replaces_secret`: then the
        token that exists gets this secret and this time of issue.
        """
        ...

    async def senders(self, physical_offsets: Sequence[int]) -> Mapping[int, int]:
        """Return the numbers of the tokens that messages were sent with, by physical offset, where they are kept."""
        ...


class GroupOffsets(Protocol):
    """Offsets that consumer groups have committed."""

    async def committed(self, group: str, queue: Queue) -> QueueOffset | None:
        """Return the offset that the group reads next, None if it has never committed one."""
        ...

    def committed_nowait(self, group: str, queue: Queue) -> QueueOffset | None:
        """Return the committed offset as far as this process knows it."""
        ...

    async def commit(self, group: str, queue: Queue, offset: int) -> QueueOffset | None:
        """Commit an offset and return the previous one. A lower offset is allowed: it rewinds the group."""
        ...

    def commit_nowait(self, group: str, queue: Queue, offset: int) -> QueueOffset | None:
        """Commit an offset and return the previous one as far as this process knows it."""
        ...

    async def commit_if(self, group: str, queue: Queue, offset: int, *, expected: int | None) -> bool:
        """Commit an offset if the committed one is `expected` (None: none is committed), and return whether it was.

        When it returns, the commit is in the log or in the database: a crash does not undo it.
        """
        ...

    async def all(self) -> Mapping[tuple[str, str], Mapping[int, QueueOffset]]:
        """Return a copy of all committed offsets: (topic, group) to queue id to the offset to be read next."""
        ...


class Marks(Protocol):
    """Named integers that survive a restart, such as the progress of a background job or a choice of a group."""

    async def get(self, name: str) -> int | None:
        """Return the value of a mark, None if it was never put."""
        ...

    async def put(self, name: str, value: int) -> None:
        """Set a mark. It survives a crash only if everything appended before it does."""
        ...


class Store(Protocol):
    """Messages, and the state that belongs to them."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def tokens(self) -> Tokens: ...
    @property
    def offsets(self) -> GroupOffsets: ...
    @property
    def marks(self) -> Marks: ...

    async def append(self, queue: Queue, drafts: Sequence[Draft]) -> AppendResult:
        """Append a batch to a queue of an existing topic (`UnknownTopic`, `TooLarge`, `StoreFull`, `FlushTimeout`)."""
        ...

    async def append_atomically(
        self, scope: str, number: int, batches: Sequence[QueueBatch], *, verify_crc: bool = True, token: int = 0
    ) -> bool:
        """Append all records or none, in this order, and set the ledger of `scope` to `number`.

        Return False, without appending, if the ledger of the scope is already at `number` or above. Readers see the
        records only once all of them are as safe as the policy says. A refused append leaves the ledger unchanged.
        `verify_crc=False` is for records whose bodies were checked against their checksums before. `token` is the
        number of the sender's token, for stores that keep it.
        """
        ...

    async def ledger(self, scope: str) -> int | None:
        """Return the number of the scope's last atomic append; scopes unused for months may be forgotten."""
        ...

    async def read(self, queue: Queue, offset: int, **limits: Unpack[ReadLimits]) -> ReadResult:
        """Read records from `offset` on; at least one if there is one, whatever `bytes_max` says."""
        ...

    async def bounds(self, queue: Queue) -> QueueBounds:
        """Return the bounds of a queue, (0, 0) if it never had a message."""
        ...

    async def offset_at(self, queue: Queue, time_ms: int, *, upper: bool = False) -> QueueOffset:
        """Return the first offset stored at or after `time_ms`; with `upper` the last stored at or before it."""
        ...

    async def find_by_key(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = 1 << 62
    ) -> list[bytes]:
        """Return the newest `limit` records with the key (one of KEYS, or the unique id), oldest first."""
        ...

    async def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record that starts exactly at the offset, which a message id contains.

        The offset may be invented: bytes inside a body are no record, whatever they look like.
        """
        ...

    async def trim(self) -> int:
        """Delete expired messages now, and return how much was deleted in the store's own unit."""
        ...

    async def close(self) -> None:
        """Close the store. Everything acknowledged is on disk when this returns."""
        ...


PendingAppend = AppendResult | asyncio.Future[AppendResult]
"""The result of an append, or a future for it."""


class StoreFiles(NamedTuple):
    """The files of a store that keeps its messages in a directory."""

    path: Path
    settings: LogSettings
    first_offset: int
    """The physical offset of the oldest record."""
    durable_offset: int
    """Everything below this physical offset is on disk."""
    flush_seconds: DurationHistogram
    """How long flushes took."""


class BatchFields(NamedTuple):
    """What the messages of a batch send have in common."""

    sys_flag: int
    born_ms: int
    born_host: bytes
    """Packed."""
    reconsume_times: int
    extra_properties: bytes
    """A property string that is appended to that of each message."""


class BatchAppender(Protocol):
    """Appends the body of a batch send, without an object for each message."""

    def append_batch_nowait(
        self, queue: Queue, batch: bytes | memoryview, common: BatchFields, *, messages_max: int = sys.maxsize
    ) -> AppendResult:
        """Append the messages of a batch (`wire.batch`), completely or not at all.

        Raise `ProtocolError` if it is none, and `TooManyMessages` if it has more than `messages_max`.
        """
        ...


class BrokerStore(Store, Protocol):
    """The store interface of a broker: a store that also answers without waiting, where it can."""

    assigns_offsets_at_once: bool
    """Whether `append_nowait` returns a result rather than a future."""
    deduplicates_sends: bool
    """Whether the store itself recognises a repeated send of an idempotent producer."""
    remembers_tokens: bool
    """Whether the store keeps, with each message, the id of the token that signed its send."""
    records_store_host: bool
    """Whether records contain the broker's address, of 8 or 20 bytes. If not, 8 bytes are left free for it."""
    all_topics_have_lanes: bool
    """Whether topics have lanes even if they were created without the flag."""

    @property
    def batch_appender(self) -> BatchAppender | None:
        """The way to append a batch as it was sent; None if the store only takes drafts."""
        ...

    @property
    def files(self) -> StoreFiles | None:
        """The files of the store; None if a database keeps the messages."""
        ...

    @property
    def message_bytes_max(self) -> int:
        """The size of the largest body that is accepted."""
        ...

    @property
    def written(self) -> int:
        """The upper bound of physical offsets in use."""
        ...

    def append_nowait(self, queue: Queue, drafts: Sequence[Draft]) -> PendingAppend:
        """Append a batch. An immediate result may still have to become durable; one from a future is durable."""
        ...

    def when_durable(self, end: int) -> asyncio.Future[None] | None:
        """Return a future that is done once everything up to `end` is durable; None if no wait is needed.

        Appends may share it: shield it from cancellation. In a replica it is done when the policy for replicas is met,
        and may fail with `ReplicationTimeout`, `NoFollower` or `NotLeader`.
        """
        ...

    def read_nowait(self, queue: Queue, offset: int, **limits: Unpack[ReadLimits]) -> ReadResult | None:
        """Return what `read` returns, or None if that needs a disk or a database."""
        ...

    def bounds_nowait(self, queue: Queue) -> QueueBounds:
        """Return the bounds of a queue as far as this process knows them."""
        ...


async def wait_durable(store: BrokerStore, end: int) -> None:
    """Wait until everything up to `end` is durable. That no follower is there is told to senders only, not here."""
    future = store.when_durable(end)
    if future is not None:
        with suppress(NoFollower):
            await asyncio.shield(future)


async def await_append(pending: PendingAppend) -> AppendResult:
    """Wait for an append that has not finished yet."""
    return pending if isinstance(pending, AppendResult) else await pending
