"""What a store promises. Two engines keep it, and one conformance suite checks both.

1. Offsets of a queue are dense, start at 0 and never go back; a message read once is read the same ever after.
2. A batch is appended whole or not at all, with consecutive offsets.
3. An append returns once it is as safe as the store's policy says. What readers see is at least as safe.
4. State (topics, groups, tokens, committed offsets, the ledger) outlives the messages around it.
5. A group is appended whole or not at all, over any number of queues, together with the ledger's word that it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypedDict, Unpack

import msgspec
import numpy as np
import numpy.typing as npt

from sparrow.model.message import Draft
from sparrow.model.queue import PhysicalOffset, Queue, QueueBounds, QueueOffset
from sparrow.model.token import Token
from sparrow.model.topic import Group, Topic


class AppendResult(msgspec.Struct, frozen=True, gc=False):
    """Where a batch came to lie."""

    queue: Queue
    offset: QueueOffset
    """Of the first message; the others follow."""
    physical_offsets: Sequence[PhysicalOffset]
    end: PhysicalOffset
    """The end of the last record: durable once the store's durable watermark has reached it."""
    store_ms: int


class Slice(msgspec.Struct, frozen=True):
    """Records as they lie in the store. `runs` may be sent as they are, one after the other."""

    runs: Sequence[memoryview]
    sizes: Sequence[int]
    """The size of each record, in order: what a columnar reader needs to skip the walk."""
    next_offset: QueueOffset
    """After the last entry looked at, whether it matched or not."""
    bounds: QueueBounds

    def tobytes(self) -> bytes:
        return b"".join(self.runs)

    def records(self) -> Iterator[memoryview]:
        """One by one."""
        data, at = memoryview(self.tobytes()), 0
        for size in self.sizes:
            yield data[at : at + size]
            at += size


class AtEnd(msgspec.Struct, frozen=True):
    """Nothing there yet: wait for the queue to grow."""

    bounds: QueueBounds


class Moved(msgspec.Struct, frozen=True):
    """The offset is not, or no longer, in the queue; reading may go on at `to`."""

    to: QueueOffset
    bounds: QueueBounds


ReadResult = Slice | AtEnd | Moved


class ReadLimits(TypedDict, total=False):
    """How much one read may answer."""

    count_max: int
    """Messages; 32 unless told."""
    bytes_max: int
    """256 KiB unless told; one message is always answered, whatever its size."""
    tags_codes: frozenset[int] | None
    """Only messages with one of these tags codes; None for all."""


class QueueRecords(NamedTuple):
    """Encoded records for one queue, end to end, as `wire.columns.encode` lays them: not yet stamped by a store."""

    queue: Queue
    data: memoryview
    sizes: npt.NDArray[np.int32]
    """Of each record."""


class Store(Protocol):
    """One store of messages and of the state that goes with them."""

    async def append(self, queue: Queue, drafts: Sequence[Draft]) -> AppendResult:
        """Append a batch to a queue of an existing topic (`UnknownTopic`, `TooLarge`, `StoreFull`, `FlushTimeout`)."""
        ...

    async def append_atomically(
        self, scope: str, number: int, portions: Sequence[QueueRecords], *, verify_crc: bool = True
    ) -> bool:
        """Append all of it or nothing, in this order, and note that `scope` has got as far as `number`.

        False: it had got there already (`number` is not above what was noted), and nothing was appended. Readers see
        none of it before all of it is as safe as the policy says. Refused like an append, and then nothing is noted.
        `verify_crc=False` is for records whose bodies were compared with their checksums before.
        """
        ...

    async def ledger(self, scope: str) -> int | None:
        """How far a scope has got, if it ever said. One that says nothing for months may be forgotten."""
        ...

    async def read(self, queue: Queue, offset: int, **limits: Unpack[ReadLimits]) -> ReadResult:
        """Records from `offset` on; at least one if there is one, whatever `bytes_max` says."""
        ...

    async def bounds(self, queue: Queue) -> QueueBounds:
        """(0, 0) for a queue that never had a message."""
        ...

    async def offset_at(self, queue: Queue, time_ms: int, *, upper: bool = False) -> QueueOffset:
        """The first offset stored at or after `time_ms`; with `upper` the last stored at or before it."""
        ...

    async def find_by_key(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = 1 << 62
    ) -> list[bytes]:
        """Records that carry the key (one of KEYS, or the unique id), the newest `limit` of them, oldest first."""
        ...

    async def record_at(self, physical_offset: int) -> bytes | None:
        """The record that starts exactly there, which is what a message id says."""
        ...

    async def topics(self) -> Mapping[str, Topic]: ...
    async def put_topic(self, topic: Topic) -> None: ...

    async def delete_topic(self, name: str) -> None:
        """Its messages, its queues and what groups have committed on it are gone."""
        ...

    async def groups(self) -> Mapping[str, Group]: ...
    async def put_group(self, group: Group) -> None: ...
    async def delete_group(self, name: str, *, keeps_offsets: bool = False) -> None:
        """Its configuration, and what it has committed unless that is kept: made again, it then goes on there."""
        ...

    async def tokens(self) -> Mapping[str, Token]:
        """Every token ever issued, by name, the revoked ones too."""
        ...

    async def put_token(self, token: Token) -> None:
        """Issue a token, or revoke it. It is never deleted."""
        ...

    async def committed(self, group: str, queue: Queue) -> QueueOffset | None:
        """The offset the group should read next, if it ever said."""
        ...

    async def offsets(self) -> Mapping[tuple[str, str], Mapping[int, QueueOffset]]:
        """Everything committed, as of now: (topic, group) to queue id to the offset to be read next."""
        ...

    async def commit(self, group: str, queue: Queue, offset: int) -> QueueOffset | None:
        """Going backwards is allowed: it is how a group is rewound. Returns what stood there before."""
        ...

    async def mark(self, name: str) -> int | None:
        """How far some work of the broker's own had got, if it ever said."""
        ...

    async def put_mark(self, name: str, value: int) -> None:
        """Survives a crash only if everything appended before it does."""
        ...

    async def trim(self) -> int:
        """Delete, now, what is older than it need be; how much went, in the store's own measure."""
        ...

    async def close(self) -> None:
        """Everything acknowledged is on disk when this returns."""
        ...


PendingAppend = AppendResult | asyncio.Future[AppendResult]
"""Where a batch lies, or will lie once the store has it."""


class BrokerStore(Store, Protocol):
    """What a broker is built on: a store that also answers without waiting, wherever it can."""

    @property
    def message_bytes_max(self) -> int:
        """The largest body it takes."""
        ...

    @property
    def written(self) -> int:
        """Physical offsets below this one may be in use."""
        ...

    def append_soon(self, queue: Queue, drafts: Sequence[Draft]) -> PendingAppend:
        """Append a batch. What is placed at once may still have to become durable; what is placed later, is."""
        ...

    def durable(self, end: int) -> asyncio.Future[None] | None:
        """Done once everything up to `end` is as safe as the policy promises; None: there is nothing to wait for."""
        ...

    def read_nowait(self, queue: Queue, offset: int, **limits: Unpack[ReadLimits]) -> ReadResult | None:
        """What `read` answers, if that needs no waiting; else None."""
        ...

    def bounds_nowait(self, queue: Queue) -> QueueBounds:
        """As far as is known here."""
        ...

    def committed_nowait(self, group: str, queue: Queue) -> QueueOffset | None:
        """As far as is known here."""
        ...

    def tokens_nowait(self) -> Mapping[str, Token]:
        """The tokens as they are known here, kept up to date."""
        ...

    def commit_nowait(self, group: str, queue: Queue, offset: int) -> QueueOffset | None:
        """The same as `commit`, without asking what stood there before."""
        ...


async def await_append(placing: PendingAppend) -> AppendResult:
    """Where it lies, once it does."""
    return placing if isinstance(placing, AppendResult) else await placing
