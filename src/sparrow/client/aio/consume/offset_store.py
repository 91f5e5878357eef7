"""Offset stores: on the brokers for members that share queues, in a local file or in memory for broadcast consumers.

For delivery at most once, a commit on a broker succeeds only if the group's offset is still the one that this consumer
has read or committed: of two members that read the same queue for a moment, one gets each message.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Container, Iterable
from pathlib import Path
from typing import Protocol

from sparrow.client.aio.connection.leader_requests import invoke_leader, leader_address
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.options import ConsumeMode, ConsumerOptions
from sparrow.model.errors import OffsetConflict, SparrowError
from sparrow.model.queue import QueueRef
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import CommitOffset, Header, OffsetResponse, QueryOffset


class OffsetStore(Protocol):
    """Where the offsets of a group are kept."""

    async def load(self, queue: QueueRef) -> int | None:
        """Return the committed offset; None without one."""
        ...

    async def save(self, offsets: dict[QueueRef, int], *, is_last: bool = False) -> None:
        """Commit offsets. Only `is_last` waits for the brokers."""
        ...


class BrokerOffsetStore:
    """Offsets on the broker of each queue."""

    def __init__(self, session: ClientSession, group: str) -> None:
        self._session, self._group = session, group

    async def load(self, queue: QueueRef) -> int | None:
        header = QueryOffset(self._group, queue.topic, queue.queue_id, zero_if_unknown=False)
        accepted = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answer = await self._invoke(queue, RequestCode.QUERY_CONSUMER_OFFSET, header, accepted)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return headers.read(OffsetResponse, answer.ext).offset

    async def save(self, offsets: dict[QueueRef, int], *, is_last: bool = False) -> None:
        topics: dict[tuple[str, str], list[QueueRef]] = {}
        for queue in offsets:
            topics.setdefault((queue.broker_name, queue.topic), []).append(queue)
        await _all(self._save_topic(queues, offsets, is_last) for queues in topics.values())

    async def _save_topic(self, queues: list[QueueRef], offsets: dict[QueueRef, int], is_last: bool) -> None:
        # RocketMQ 4 creates a table for the group and the topic at the first commit, and replaces it if a second commit
        # arrives at the same time. So the first one is acknowledged before the others are sent.
        first, *others = queues
        await self._save(first, offsets[first], True)
        await _all(self._save(queue, offsets[queue], is_last) for queue in others)

    async def _save(self, queue: QueueRef, offset: int, is_last: bool) -> None:
        header = CommitOffset(self._group, queue.topic, queue.queue_id, offset, queue.broker_name)
        if is_last:
            await self._invoke(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        else:
            channel = await self._session.channel(leader_address(self._session, queue.topic, queue.broker_name))
            channel.send_one_way(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def _invoke(
        self, queue: QueueRef, code: RequestCode, header: Header, accepted: Container[int] = (ResponseCode.SUCCESS,)
    ) -> RemotingCommand:
        return await invoke_leader(self._session, queue.topic, queue.broker_name, code, header, accepted=accepted)


class ConditionalOffsetStore(BrokerOffsetStore):
    """Offsets on the broker of each queue, committed only if no other member has committed meanwhile."""

    def __init__(self, session: ClientSession, group: str) -> None:
        super().__init__(session, group)
        self._known: dict[QueueRef, int] = {}
        """The committed offset of each queue, -1 without one."""

    async def load(self, queue: QueueRef) -> int | None:
        found = await super().load(queue)
        self._known[queue] = -1 if found is None else found
        return found

    async def save(self, offsets: dict[QueueRef, int], *, is_last: bool = False) -> None:
        """Commit offsets, and wait until the brokers have stored them; raise `OffsetConflict` if one has changed.

        After a lost response the offset is unknown: the next commit is a conflict if the broker had stored it.
        """
        await _all(self._save_if_expected(queue, offset) for queue, offset in offsets.items())

    async def _save_if_expected(self, queue: QueueRef, offset: int) -> None:
        expected = self._known.get(queue, -1)
        header = CommitOffset(self._group, queue.topic, queue.queue_id, offset, queue.broker_name, expected)
        accepted = (ResponseCode.SUCCESS, ResponseCode.ILLEGAL_OPERATION)
        answer = await self._invoke(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header, accepted)
        if answer.code == ResponseCode.ILLEGAL_OPERATION:
            raise OffsetConflict(self._group, queue, expected)
        self._known[queue] = offset


async def _all(saves: Iterable[Awaitable[None]]) -> None:
    """Wait for all commits: one unreachable broker must not prevent the others."""
    for outcome in await asyncio.gather(*saves, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


class LocalOffsetStore:
    """Offsets in a local file, or only in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, int] = {}
        self._writing = threading.Lock()
        if path is not None and path.exists():
            try:
                self._known = {str(name): int(offset) for name, offset in json.loads(path.read_text()).items()}
            except (ValueError, AttributeError, OSError) as cause:
                raise SparrowError(f"the offset file {path} is not valid: repair or delete it") from cause

    async def load(self, queue: QueueRef) -> int | None:
        return self._known.get(_name_of(queue))

    def forget(self) -> None:
        """Forget the offsets in memory; a file stays."""
        self._known.clear()

    async def save(self, offsets: dict[QueueRef, int], *, is_last: bool = False) -> None:
        self._known.update({_name_of(queue): offset for queue, offset in offsets.items()})
        if self._path is not None:
            try:
                await asyncio.to_thread(self._write, self._path)
            except OSError as cause:
                raise SparrowError(f"cannot write the offset file {self._path}: {cause.strerror}") from cause

    def _write(self, path: Path) -> None:
        """Replace the file atomically. Writers take turns, and the last writes the newest offsets."""
        with self._writing:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
            fresh.write_text(json.dumps(self._known.copy(), indent=1))
            fresh.replace(path)


def make_offset_store(session: ClientSession, group: str, mode: ConsumeMode, options: ConsumerOptions) -> OffsetStore:
    """Return the offset store of a consumer with these options."""
    if mode == "broadcast":
        path = options["offsets_path"]
        return LocalOffsetStore(Path(path) if path is not None else None)
    return (ConditionalOffsetStore if options["at_most_once"] else BrokerOffsetStore)(session, group)


def _name_of(queue: QueueRef) -> str:
    return f"{queue.topic}@{queue.broker_name}@{queue.queue_id}"
