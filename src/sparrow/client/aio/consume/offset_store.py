"""Offset stores: on the brokers for members that share queues, in a local file or in memory for broadcast consumers."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Protocol

from sparrow.client.aio.connection.session import ClientSession
from sparrow.model.errors import SparrowError, Unavailable
from sparrow.model.queue import QueueRef
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import CommitOffset, OffsetResponse, QueryOffset


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
        answer = await self._session.invoke_unchecked(self._address(queue), RequestCode.QUERY_CONSUMER_OFFSET, header)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_response(answer.code, answer.remark)
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
        address = self._address(queue)
        if is_last:
            await self._session.invoke(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        else:
            channel = await self._session.channel(address)
            channel.send_one_way(RequestCode.UPDATE_CONSUMER_OFFSET, self._session.signed(header))

    def _address(self, queue: QueueRef) -> str:
        route = self._session.cached_route(queue.topic)
        address = route.address_of(queue.broker_name) if route is not None else None
        if address is None:
            raise Unavailable(f"the route of topic {queue.topic!r} has no broker {queue.broker_name!r}")
        return address


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


def _name_of(queue: QueueRef) -> str:
    return f"{queue.topic}@{queue.broker_name}@{queue.queue_id}"
