"""Pulling: records go out as they lie in the store; where there are none yet, the request waits in the hold.

A plain function. Only what needs the disk, or makes a group, becomes a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

import numpy as np

from sparrow.broker.clients.subscriptions import SubscriptionFilter, parse_filter
from sparrow.broker.consume.filtering import apply_selector, messages_to_examine
from sparrow.broker.consume.long_poll import ParkedRequest
from sparrow.broker.consume.references import may_contain_references, may_hold_references, resolve_references
from sparrow.broker.context import Broker
from sparrow.model.errors import NotPermitted, Refused
from sparrow.model.queue import Queue
from sparrow.model.topic import Group
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import HandlerResponse, InlineHandler, encode_error, encode_response
from sparrow.store.spi import AtEnd, Moved, ReadLimits, ReadResult, Slice
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand
from sparrow.wire.headers import PullMessage, PullMessageResponse

log = logging.getLogger(__name__)

SKIP_BACKLOG_ATTRIBUTE = "skip.backlog"
"""An attribute of a group: more messages behind than this in a queue, and it goes on at the queue's end."""
_TURNS_A_CHANNEL = 4
"""Answers from disk that one peer may wait for at a time."""
_USUAL_BYTES = 256 * 1024
"""What an answer holds when the client names no limit of its own (4.9 does not)."""

_FOUND, _NOT_FOUND, _AGAIN, _MOVED = (
    int(ResponseCode.SUCCESS),
    int(ResponseCode.PULL_NOT_FOUND),
    int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    int(ResponseCode.PULL_OFFSET_MOVED),
)
_REMARKS = {
    _FOUND: "FOUND",
    _NOT_FOUND: "NO_NEW_MSG",
    _AGAIN: "NO_MATCHED_MSG",
    _MOVED: "OFFSET_ILLEGAL",
}


class PullHandler:
    """Serves pulls (11) and lite pulls (361): on the wire they are the same."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._store, self._long_polls = broker, broker.store, broker.long_polls
        self._groups, self._topics, self._clients = broker.groups, broker.topics, broker.clients
        self._settings = broker.settings
        self._turns: WeakKeyDictionary[Channel, asyncio.Semaphore] = WeakKeyDictionary()

    def handlers(self) -> dict[int, InlineHandler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, command: RemotingCommand, channel: Channel) -> bytes | Awaitable[bytes | None] | None:
        request = headers.read(PullMessage, command.ext)
        group = self._groups.get(request.group)
        if group is None:
            return self._in_new_group(request, command, channel)
        self._check(request, group)
        said = self._filter_of(request)
        if isinstance(said, HandlerResponse):
            return encode_response(command, said)
        queue = Queue(request.topic, request.queue_id)
        if request.sys_flag & headers.pull.COMMIT_OFFSET_FLAG and request.commit_offset >= 0:
            self._store.offsets.commit_nowait(request.group, queue, request.commit_offset)
        if group.attributes and (skipped := self._skipped(group, request, command, queue)) is not None:
            return skipped
        found = self._read_now(queue, request.offset, request, said)
        if found is None:
            return self._from_disk(request, command, channel, queue, said)
        return self._answer(request, command, channel, queue, said, found)

    async def _in_new_group(self, request: PullMessage, command: RemotingCommand, channel: Channel) -> bytes | None:
        await self._broker.groups.get_or_create(request.group)
        async with self._turn(channel):
            again = self.pull(command, channel)
            if isinstance(again, bytes):
                channel.write(again)
                return None
        return again if again is None else await again

    @asynccontextmanager
    async def _turn(self, channel: Channel) -> AsyncIterator[None]:
        """For answers that are not given at once. A few at a time, and none while the peer does not read what it has:
        else one that asks and never reads could fill our memory."""
        turns = self._turns.get(channel)
        if turns is None:
            turns = self._turns[channel] = asyncio.Semaphore(_TURNS_A_CHANNEL)
        async with turns:
            await channel.writable()
            yield

    def _skipped(self, group: Group, request: PullMessage, command: RemotingCommand, queue: Queue) -> bytes | None:
        """A group that wants what is new rather than all of it is sent to the end once it is too far behind."""
        limit = group.attributes.get(SKIP_BACKLOG_ATTRIBUTE, "")
        if not limit.isdigit():
            return None
        first, end = self._store.bounds_nowait(queue)
        if end - request.offset <= int(limit):
            return None
        words = {"group": group.name, "queue": str(queue), "from": request.offset, "to": end}
        log.warning("backlog skipped", extra=words)
        return _said(command, _MOVED, end, first, end)

    def _check(self, request: PullMessage, group: Group) -> None:
        if not group.may_consume:
            raise NotPermitted(f"consuming in group {group.name!r}", "the group's configuration forbids it")
        topic = self._topics[request.topic]
        if not topic.is_readable:
            raise NotPermitted(f"reading topic {topic.name!r}", "the topic has no read permission")
        if not 0 <= request.queue_id < topic.read_queues:
            raise Refused(
                f"topic {topic.name!r} has no queue {request.queue_id}: its queues are 0 to {topic.read_queues - 1}"
            )
        if request.messages_max < 1:
            raise Refused(f"a pull of at most {request.messages_max} messages makes no sense: ask for 1 or more")

    def _filter_of(self, request: PullMessage) -> SubscriptionFilter | HandlerResponse:
        if request.sys_flag & headers.pull.SUBSCRIPTION_FLAG:
            return parse_filter(request.topic, request.subscription or "*", request.expression_type or "TAG")
        found = self._clients.subscription_filter(request.group, request.topic)
        if found is None:
            # A heartbeat may be on its way (the broker restarted, say): clients try again.
            return HandlerResponse(
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
                remark=f"group {request.group!r} has not subscribed to {request.topic!r}: no heartbeat said so yet",
            )
        if found.version < request.sub_version:
            return HandlerResponse(
                code=ResponseCode.SUBSCRIPTION_NOT_LATEST,
                remark=f"an older subscription of group {request.group!r} to {request.topic!r} is known here",
            )
        return found

    def _read_now(
        self, queue: Queue, offset: int, request: PullMessage, wanted: SubscriptionFilter
    ) -> ReadResult | None:
        """What matches, if that needs no disk; else None."""
        found = self._store.read_nowait(queue, offset, **self._limits(request, wanted))
        if may_hold_references(queue.topic) and may_contain_references(found):
            return None
        if wanted.selector is None or found is None:
            return found
        return apply_selector(found, wanted.selector, self._count_max(request))

    def _limits(self, request: PullMessage, wanted: SubscriptionFilter) -> ReadLimits:
        return {
            "count_max": messages_to_examine(self._count_max(request), wanted.selector),
            "bytes_max": self._bytes_max(request),
            "tags_codes": wanted.tags_codes,
        }

    def _count_max(self, request: PullMessage) -> int:
        return min(request.messages_max, self._settings.pull_messages_max)

    def _bytes_max(self, request: PullMessage) -> int:
        if request.bytes_max is None or request.bytes_max <= 0:
            return _USUAL_BYTES
        return min(request.bytes_max, self._settings.pull_bytes_max)

    async def _from_disk(
        self, request: PullMessage, command: RemotingCommand, channel: Channel, queue: Queue, wanted: SubscriptionFilter
    ) -> bytes | None:
        async with self._turn(channel):
            found = await self._store.read(queue, request.offset, **self._limits(request, wanted))
            if may_hold_references(queue.topic):
                found = await resolve_references(self._store, found, bytes_max=self._bytes_max(request))
            found = apply_selector(found, wanted.selector, self._count_max(request))
            frame = self._answer(request, command, channel, queue, wanted, found)
            if frame is not None:
                channel.write(frame)
        return None

    def _answer(
        self,
        request: PullMessage,
        command: RemotingCommand,
        channel: Channel,
        queue: Queue,
        wanted: SubscriptionFilter,
        found: ReadResult,
    ) -> bytes | None:
        first, end = found.bounds
        if isinstance(found, AtEnd):
            if (
                request.sys_flag & headers.pull.SUSPEND_FLAG
                and request.long_poll_ms > 0
                and not command.flag & ONE_WAY_FLAG
            ):
                self._park(request, command, channel, queue, wanted)
                return None
            self._broker.counters.count_empty_pull(request.group, request.topic)
            return _said(command, _NOT_FOUND, request.offset, first, end)
        if isinstance(found, Moved):
            return _said(command, _MOVED, found.to, first, end)
        if not found.sizes:
            return _said(command, _AGAIN, found.next_offset, first, end)
        self._broker.counters.count_pull(request.group, request.topic, len(found.sizes), sum(found.sizes))
        return _found(request, command, found)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _park(
        self, request: PullMessage, command: RemotingCommand, channel: Channel, queue: Queue, wanted: SubscriptionFilter
    ) -> None:
        def resume(held: ParkedRequest, is_over: bool) -> bool:
            if not channel.is_open:
                return True
            try:
                frame = self._look_again(request, command, held, wanted, is_over)
            except Exception as error:
                frame = encode_error(command, error)
            if frame is None:
                return False
            channel.write(frame)
            return True

        held = ParkedRequest(queue, request.offset, resume, channel)
        self._long_polls.park(held, min(request.long_poll_ms, self._settings.long_poll_ms_max))
        # Between the read and the parking another thread may have made more visible (synchronous flush does).
        if self._store.bounds_nowait(queue).end > request.offset:
            self._long_polls.wake(queue)

    def _look_again(
        self,
        request: PullMessage,
        command: RemotingCommand,
        held: ParkedRequest,
        wanted: SubscriptionFilter,
        is_over: bool,
    ) -> bytes | None:
        """The answer, or None to go on waiting."""
        while True:
            found = self._read_now(held.queue, held.offset, request, wanted)
            if found is None:  # what it waited for has left memory already: the next pull reads the disk
                bounds = self._store.bounds_nowait(held.queue)
                return _said(command, _AGAIN, held.offset, *bounds)
            first, end = found.bounds
            if isinstance(found, AtEnd):
                return _said(command, _NOT_FOUND, held.offset, first, end) if is_over else None
            if isinstance(found, Moved):
                return _said(command, _MOVED, found.to, first, end)
            if found.sizes:
                self._broker.counters.count_pull(request.group, request.topic, len(found.sizes), sum(found.sizes))
                return _found(request, command, found)
            held.offset = found.next_offset


def _said(
    command: RemotingCommand,
    code: int,
    next_offset: int,
    first: int,
    end: int,
    body: bytes | Sequence[bytes | memoryview] = b"",
) -> bytes | None:
    header = PullMessageResponse(0, next_offset, first, end)
    return encode_response(command, HandlerResponse(header, body, code, _REMARKS[code]))


def _found(request: PullMessage, command: RemotingCommand, found: Slice) -> bytes | None:
    first, end = found.bounds
    if not request.with_sizes:
        return _said(command, _FOUND, found.next_offset, first, end, found.buffers)
    header = PullMessageResponse(0, found.next_offset, first, end, sizes=len(found.sizes))
    body: list[bytes | memoryview] = [*found.buffers, np.asarray(found.sizes, ">i4").tobytes()]
    return encode_response(command, HandlerResponse(header, body, _FOUND, _REMARKS[_FOUND]))
