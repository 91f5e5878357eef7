"""The pull handler: records are sent as they are stored; a pull without messages is parked for long polling.

An inline handler. Only a pull that reads the disk, or creates a group, becomes a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

import msgspec

from sparrow.broker.clients.subscriptions import SubscriptionFilter, parse_filter
from sparrow.broker.consume.filtering import apply_selector, messages_to_examine
from sparrow.broker.consume.long_poll import ParkedRequest
from sparrow.broker.consume.pull_response import AGAIN, MOVED, NOT_FOUND, encode_found, encode_pull
from sparrow.broker.consume.references import may_contain_references, may_hold_references, resolve_references
from sparrow.broker.context import Broker
from sparrow.model.errors import NotPermitted, Refused
from sparrow.model.queue import Queue
from sparrow.model.topic import Group
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import HandlerResponse, InlineHandler, InlineResult, encode_error, encode_response
from sparrow.store.spi import AtEnd, Moved, ReadLimits, ReadResult
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand
from sparrow.wire.headers import PullMessage

log = logging.getLogger(__name__)

SKIP_BACKLOG_ATTRIBUTE = "skip.backlog"
"""A group attribute: if the lag in a queue exceeds this number of messages, the group continues at the queue's end."""
_DISK_READS_PER_CHANNEL = 4
"""Answers from disk for one connection at a time."""
_DEFAULT_ANSWER_BYTES = 256 * 1024
"""The size of an answer if the client sets no limit (4.9 does not)."""

_RETRY_READS_MAX = 4
"""Reads without a match that a parked pull makes when it is woken. Then it is answered, and the client continues."""


class PullHandler:
    """Handles pulls (11) and lite pulls (361), which are the same on the wire."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._store, self._long_polls = broker, broker.store, broker.long_polls
        self._groups, self._topics, self._clients = broker.groups, broker.topics, broker.clients
        self._settings = broker.settings
        self._resets, self._handed_out = broker.positions.resets, broker.positions.handed_out
        self._disk_slots: WeakKeyDictionary[Channel, asyncio.Semaphore] = WeakKeyDictionary()

    def handlers(self) -> dict[int, InlineHandler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, command: RemotingCommand, channel: Channel) -> InlineResult:
        request = headers.read(PullMessage, command.ext)
        group = self._groups.get(request.group)
        if group is None:
            return self._in_new_group(request, command, channel)
        self._check(request, group)
        wanted_or_error = self._filter_of(request)
        if isinstance(wanted_or_error, HandlerResponse):
            return encode_response(command, wanted_or_error)
        queue = Queue(request.topic, request.queue_id)
        if self._resets and (reset := self._resets.pop((request.group, queue), None)) is not None:
            advised = self._broker.advised_broker_id(queue, None)
            return encode_pull(command, advised, MOVED, reset, *self._store.bounds_nowait(queue))
        if request.sys_flag & headers.pull.COMMIT_OFFSET_FLAG and request.commit_offset >= 0:
            self._store.offsets.commit_nowait(request.group, queue, request.commit_offset)
        if group.attributes and (skipped := self._skipped(group, request, command, queue)) is not None:
            return skipped
        found = self._read_now(queue, request.offset, request, wanted_or_error)
        if found is None:
            return self._from_disk(request, command, channel, queue, wanted_or_error)
        return self._answer(request, command, channel, queue, wanted_or_error, found)

    async def _in_new_group(self, request: PullMessage, command: RemotingCommand, channel: Channel) -> bytes | None:
        await self._broker.groups.get_or_create(request.group)
        async with self._disk_slot(channel):
            again = self.pull(command, channel)
            if isinstance(again, bytes):
                channel.write(again)
                return None
        return again if again is None else await again

    @asynccontextmanager
    async def _disk_slot(self, channel: Channel) -> AsyncIterator[None]:
        """Limit the answers from disk of a connection: a few at a time, and none while the peer does not read.

        Otherwise a peer that never reads could fill the memory.
        """
        slots = self._disk_slots.get(channel)
        if slots is None:
            slots = self._disk_slots[channel] = asyncio.Semaphore(_DISK_READS_PER_CHANNEL)
        async with slots:
            await channel.writable()
            yield

    def _skipped(self, group: Group, request: PullMessage, command: RemotingCommand, queue: Queue) -> bytes | None:
        """Return the answer that moves a group to the queue's end, if it wants that and its lag is too large."""
        limit = group.attributes.get(SKIP_BACKLOG_ATTRIBUTE, "")
        if not limit.isdigit():
            return None
        first, end = self._store.bounds_nowait(queue)
        if end - request.offset <= int(limit):
            return None
        log.warning(
            "group %(group)s skips its backlog on %(queue)s from offset %(from)s to %(to)s, as its attribute"
            " %(attribute)s demands",
            {
                "group": group.name,
                "queue": queue,
                "from": request.offset,
                "to": end,
                "attribute": SKIP_BACKLOG_ATTRIBUTE,
            },
        )
        return encode_pull(command, self._broker.advised_broker_id(queue, None), MOVED, end, first, end)

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

    def _filter_of(self, request: PullMessage) -> SubscriptionFilter | HandlerResponse:
        if request.sys_flag & headers.pull.SUBSCRIPTION_FLAG:
            return parse_filter(request.topic, request.subscription or "*", request.expression_type or "TAG")
        found = self._clients.subscription_filter(request.group, request.topic)
        if found is None:
            # The heartbeat may not have arrived yet, for instance after a restart of the broker. Clients retry.
            return HandlerResponse(
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
                remark=(
                    f"group {request.group!r} has not subscribed to {request.topic!r} yet: no "
                    "heartbeat with it has arrived"
                ),
            )
        if found.version < request.sub_version:
            return HandlerResponse(
                code=ResponseCode.SUBSCRIPTION_NOT_LATEST,
                remark=f"only an older subscription of group {request.group!r} to {request.topic!r} has arrived yet",
            )
        return found

    def _read_now(
        self, queue: Queue, offset: int, request: PullMessage, wanted: SubscriptionFilter
    ) -> ReadResult | None:
        """Return the matching records if that needs no disk; else None."""
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
        settings = self._settings
        most = settings.pull_messages_max if request.accepts_many else settings.pull_messages_default
        return max(1, min(request.messages_max, most))  # Go's pull consumer asks for 0 by default

    def _bytes_max(self, request: PullMessage) -> int:
        if request.bytes_max is None or request.bytes_max <= 0:
            return _DEFAULT_ANSWER_BYTES
        return min(request.bytes_max, self._settings.pull_bytes_max)

    async def _from_disk(
        self, request: PullMessage, command: RemotingCommand, channel: Channel, queue: Queue, wanted: SubscriptionFilter
    ) -> bytes | None:
        async with self._disk_slot(channel):
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
        advised = self._broker.advised_broker_id(queue, found)
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
            return encode_pull(command, advised, NOT_FOUND, request.offset, first, end)
        if isinstance(found, Moved):
            return encode_pull(command, advised, MOVED, found.to, first, end)
        self._handed_out[request.group, queue] = found.next_offset
        if not found.sizes:
            return encode_pull(command, advised, AGAIN, found.next_offset, first, end)
        self._broker.counters.count_pull(request.group, request.topic, len(found.sizes), sum(found.sizes))
        return encode_found(request, command, advised, found)

    # -- long polling -------------------------------------------------------------------------------------------------

    def _park(
        self, request: PullMessage, command: RemotingCommand, channel: Channel, queue: Queue, wanted: SubscriptionFilter
    ) -> None:
        # Nobody reads them again, and they would be kept as long as the request is parked.
        command = msgspec.structs.replace(command, body=b"", ext=None)

        def resume(parked: ParkedRequest, is_over: bool) -> bool:
            if not channel.is_open:
                return True
            try:
                if channel.is_crowded:  # it pulls again when it has read the responses to other pulls
                    frame = self._again(command, parked)
                else:
                    frame = self._retry(request, command, parked, wanted, is_over)
            except Exception as error:
                frame = encode_error(command, error, peer=channel.address)
            if frame is None:
                return False
            channel.write(frame)
            return True

        parked = ParkedRequest(queue, request.offset, resume, channel, code=command.code)
        self._long_polls.park(parked, self._long_poll_ms(request))
        # Another thread may have made messages visible between the read and the parking (synchronous flush does).
        if self._store.bounds_nowait(queue).end > request.offset:
            self._long_polls.wake(queue)

    def _long_poll_ms(self, request: PullMessage) -> int:
        return min(request.long_poll_ms, self._settings.long_poll_ms_max)

    def _retry(
        self,
        request: PullMessage,
        command: RemotingCommand,
        parked: ParkedRequest,
        wanted: SubscriptionFilter,
        is_over: bool,
    ) -> bytes | None:
        """Return the answer, or None to stay parked."""
        if self._resets and (reset := self._resets.pop((request.group, parked.queue), None)) is not None:
            advised = self._broker.advised_broker_id(parked.queue, None)
            return encode_pull(command, advised, MOVED, reset, *self._store.bounds_nowait(parked.queue))
        for _ in range(_RETRY_READS_MAX):
            found = self._read_now(parked.queue, parked.offset, request, wanted)
            advised = self._broker.advised_broker_id(parked.queue, found)
            if found is None:  # the record has left memory already: the next pull reads the disk
                return self._again(command, parked)
            first, end = found.bounds
            if isinstance(found, AtEnd):
                return encode_pull(command, advised, NOT_FOUND, parked.offset, first, end) if is_over else None
            if isinstance(found, Moved):
                return encode_pull(command, advised, MOVED, found.to, first, end)
            self._handed_out[request.group, parked.queue] = found.next_offset
            if found.sizes:
                self._broker.counters.count_pull(request.group, request.topic, len(found.sizes), sum(found.sizes))
                return encode_found(request, command, advised, found)
            parked.offset = found.next_offset
        return encode_pull(command, advised, AGAIN, parked.offset, first, end)

    def _again(self, command: RemotingCommand, parked: ParkedRequest) -> bytes | None:
        """Return the answer with which a client pulls again at once."""
        advised = self._broker.advised_broker_id(parked.queue, None)
        return encode_pull(command, advised, AGAIN, parked.offset, *self._store.bounds_nowait(parked.queue))
