"""The handlers of pops and notifications: answered at once, or parked for long polling.

Inline handlers. Only a request that reads the disk, creates a group, or is for a topic with many queues becomes a task.
The queues of such a topic are examined a few at a time, for one request after the other, so that nobody else waits; a
parked request then examines only the queues that grow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from sparrow.broker.clients.subscriptions import SubscriptionFilter, parse_filter
from sparrow.broker.consume.grown_queues import GrownQueues
from sparrow.broker.consume.long_poll import ANY_QUEUE, ParkedRequest
from sparrow.broker.context import Broker
from sparrow.broker.pop.fetch import PopFetcher
from sparrow.broker.pop.response import PopResponse, no_message_frame
from sparrow.broker.pop.validation import check_invisible_time, check_may_pop, check_message_count
from sparrow.model.errors import Busy
from sparrow.model.queue import Queue
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import HandlerResponse, InlineHandler, InlineResult, encode_error, encode_response
from sparrow.store.spi import ReadResult
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand
from sparrow.wire.headers import NotificationRequest, NotificationResponse, PopMessage

_LATE_MS = 500
"""A pop that arrives this long after its deadline is not served: its sender would not get the messages."""
_ANSWER_TRAVEL_MS = 50
"""Time for the answer to reach the sender before its deadline."""

PollAttempt = Callable[[bool], "bytes | None"]
"""Tries to answer a parked request. With True, at its deadline, it must return an answer."""


class ParkedPop(ParkedRequest):
    """A parked pop or notification."""

    __slots__ = ("group", "queue_id")

    def __init__(
        self,
        request: PopMessage | NotificationRequest,
        queues: list[Queue],
        resume: Callable[[ParkedRequest, bool], bool],
        to: Channel,
        code: int,
    ) -> None:
        super().__init__(queues[0], 0, resume, to, other_queues=tuple(queues[1:]), code=code)
        self.group, self.queue_id = request.group, request.queue_id


class PopHandler:
    """Handles pops (200050) and notifications (200054)."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._long_polls, self._pop_state = broker, broker.long_polls, broker.pop_state
        self._fetcher = PopFetcher(broker)
        self._empty_keys: set[tuple[object, ...]] = set()
        """Pops that found nothing in this iteration of the event loop, so that a thousand equal ones read once."""
        self._scan_turn = asyncio.Lock()
        """Held by the request that examines the queues of a topic with many queues."""

    def handlers(self) -> dict[int, InlineHandler]:
        return {RequestCode.POP_MESSAGE: self.pop, RequestCode.NOTIFICATION: self.notify}

    # -- pop ----------------------------------------------------------------------------------------------------------

    def pop(self, command: RemotingCommand, channel: Channel, *, has_positions: bool = False) -> InlineResult:
        self._pop_state.check_available()
        if command.body:  # nobody reads it, and it would be kept as long as the request is parked
            command = msgspec.structs.replace(command, body=b"")
        request = headers.read(PopMessage, command.ext)
        check_message_count(request.messages_max)
        check_invisible_time(request.invisible_ms, least=1)
        if self._broker.groups.get(request.group) is None:
            return self._in_new_group(request.group, command, channel)
        check_may_pop(self._broker, request.group, request.topic, request.queue_id)
        wanted = parse_filter(request.topic, request.expression, request.expression_type)
        if command.flag & ONE_WAY_FLAG:
            return None  # nothing may be popped without an answer
        if self._is_late(request):
            return no_message_frame(command)
        if self._broker.positions.resets:
            self._broker.positions.drop_resets(request.group, request.topic)
        if self._fetcher.is_wide(request.topic, request.queue_id):
            return self._pop_wide(request, wanted, command, channel)
        opening = None if has_positions else self._fetcher.load_positions(request)
        if opening is not None:
            return self._once_open(opening, command, channel)
        response = PopResponse(request, wanted, self._broker.now_ms())
        cold = self._fetcher.fill(response)
        if cold is not None:
            return self._from_disk(response, cold, command, channel)
        return self._answer(response, command) or self._wait(response, command, channel)

    def _wait(self, response: PopResponse, command: RemotingCommand, channel: Channel) -> bytes | None:
        """Park a pop that found nothing, or answer that there is none."""
        request = response.request
        attempt = self._poll_attempt(request, response.wanted, command)
        if response.is_cut_short or not self._park(request, command, channel, attempt):
            self._broker.counters.count_empty_pull(request.group, request.topic)
            return no_message_frame(command)
        return None

    async def _in_new_group(self, group: str, command: RemotingCommand, channel: Channel) -> bytes | None:
        await self._broker.groups.get_or_create(group)
        return await self._again(command, channel, has_positions=False)

    async def _once_open(self, opening: Awaitable[None], command: RemotingCommand, channel: Channel) -> bytes | None:
        await opening
        return await self._again(command, channel, has_positions=True)

    async def _again(self, command: RemotingCommand, channel: Channel, *, has_positions: bool) -> bytes | None:
        serve = self.pop if command.code == RequestCode.POP_MESSAGE else self.notify
        again = serve(command, channel, has_positions=has_positions)
        return again if again is None or isinstance(again, bytes) else await again

    def _is_late(self, request: PopMessage | NotificationRequest) -> bool:
        return request.born_ms > 0 and self._broker.now_ms() - request.born_ms - request.poll_ms > _LATE_MS

    def _answer(self, response: PopResponse, command: RemotingCommand) -> bytes | None:
        """Return the answer; None if nothing was fetched. Puts the messages in flight."""
        self._fetcher.mark_in_flight(response)
        if not response.count:
            return None
        request = response.request
        size = sum(map(len, response.records))
        self._broker.counters.count_pull(request.group, request.topic, response.count, size)
        return encode_response(command, HandlerResponse(response.header(), response.records, remark="FOUND"))

    async def _from_disk(
        self, response: PopResponse, cold: Queue, command: RemotingCommand, channel: Channel
    ) -> bytes | None:
        """Read from disk what is not in memory, and fetch again. Other pops of the group skip these queues."""
        await channel.writable()
        group, reading = response.request.group, self._fetcher.reading
        if (group, cold) in reading:
            return no_message_frame(command)
        alone = [(cold, 0)]
        if self._pop_state.cold_reads_max == 1:  # the other queues are skipped: all slots are for this one
            response = PopResponse(response.request, response.wanted, response.now_ms)
            response.sources = alone
        reserved: list[Queue] = []
        fetched: dict[Queue, tuple[int, ReadResult]] = {}
        again: Queue | None = cold
        try:
            while again is not None and again not in fetched and len(reserved) < self._pop_state.cold_reads_max:
                reading.add((group, again))
                reserved.append(again)
                fetched[again] = await self._fetcher.fetch(response, again)
                response = response.restarted(self._broker.now_ms(), fetched)
                again = self._fetcher.fill(response)
            frame = self._answer(response, command)
            if frame is None and (again is not None or response.sources is alone or response.is_partial):
                return no_message_frame(command)
            return frame or self._wait(response, command, channel)
        finally:
            for queue in reserved:
                reading.discard((group, queue))
                self._long_polls.wake(queue)

    def _poll_attempt(self, request: PopMessage, wanted: SubscriptionFilter, command: RemotingCommand) -> PollAttempt:
        key = (
            request.group,
            request.topic,
            request.queue_id,
            request.expression_type,
            request.expression,
            request.in_order,
            request.attempt_id,
        )

        def attempt(is_over: bool) -> bytes | None:
            if key in self._empty_keys and not is_over:
                return None
            response = PopResponse(request, wanted, self._broker.now_ms())
            cold = self._fetcher.fill(response)
            frame = self._answer(response, command)
            if frame is not None:
                return frame
            if is_over or cold is not None or response.is_cut_short:
                return no_message_frame(command)  # the next pop reads the disk
            self._remember_empty(key)
            return None

        return attempt

    def _remember_empty(self, key: tuple[object, ...]) -> None:
        """Remember a pop without messages until the end of this iteration: nothing new is visible before the next."""
        if not self._empty_keys:
            asyncio.get_running_loop().call_soon(self._empty_keys.clear)
        self._empty_keys.add(key)

    # -- notification -------------------------------------------------------------------------------------------------

    def notify(self, command: RemotingCommand, channel: Channel, *, has_positions: bool = False) -> InlineResult:
        self._pop_state.check_available()
        if command.body:  # nobody reads it, and it would be kept as long as the request is parked
            command = msgspec.structs.replace(command, body=b"")
        request = headers.read(NotificationRequest, command.ext)
        if self._broker.groups.get(request.group) is None:
            return self._in_new_group(request.group, command, channel)
        check_may_pop(self._broker, request.group, request.topic, request.queue_id)
        if self._fetcher.is_wide(request.topic, request.queue_id):
            return self._notify_wide(request, command, channel)
        opening = None if has_positions else self._fetcher.load_positions(request)
        if opening is not None:
            return self._once_open(opening, command, channel)

        def attempt(is_over: bool) -> bytes | None:
            queues = self._fetcher.queues(request.topic, request.queue_id)
            queues += filter(None, [self._fetcher.retry_queue(request.group, request.topic)])
            has_message = self._has_message(request, queues)
            return _notification_frame(command, has_message=has_message) if has_message or is_over else None

        frame = attempt(self._is_late(request) or bool(command.flag & ONE_WAY_FLAG))
        if frame is None and not command.flag & ONE_WAY_FLAG and not self._park(request, command, channel, attempt):
            return attempt(True)
        return frame

    def _has_message(self, request: NotificationRequest, queues: Iterable[Queue]) -> bool:
        """Return whether one of these queues has a message for the group; retries are not delivered in order."""
        self._pop_state.check_available()
        group, fetcher = request.group, self._fetcher
        if request.in_order:
            now_ms, attempt = self._broker.now_ms(), request.attempt_id
            ordered = (queue for queue in queues if queue.topic == request.topic)
            queues = (queue for queue in ordered if not fetcher.is_blocked(group, queue, now_ms, attempt))
        return any(fetcher.has_more(group, queue) for queue in queues)

    # -- topics with many queues --------------------------------------------------------------------------------------

    async def _pop_wide(
        self, request: PopMessage, wanted: SubscriptionFilter, command: RemotingCommand, channel: Channel
    ) -> bytes | None:
        self._long_polls.keep_growth(self._broker.topics.__contains__)
        grown = self._long_polls.record_growth(request.topic)
        seen, is_cut_short = grown.number, False
        response, cold = PopResponse(request, wanted, self._broker.now_ms()), None
        async with self._scan_turn:
            if not channel.is_open or self._is_late(request):
                return no_message_frame(command)
            for sources in self._fetcher.steps(request, grown):
                if (opening := self._fetcher.load_positions_of(request.group, sources)) is not None:
                    await opening
                response = PopResponse(request, wanted, self._broker.now_ms())
                response.sources, response.is_partial = sources, True
                cold = self._fetcher.fill(response)
                if cold is not None:
                    break
                frame = self._answer(response, command)
                if frame is not None:
                    return frame
                is_cut_short |= response.is_cut_short
                await asyncio.sleep(0)
        if cold is not None:
            return await self._from_disk(response, cold, command, channel)
        attempt = self._wide_poll_attempt(request, wanted, command, grown, seen)
        if is_cut_short or not self._park(request, command, channel, attempt):
            self._broker.counters.count_empty_pull(request.group, request.topic)
            return no_message_frame(command)
        return None

    def _wide_poll_attempt(
        self, request: PopMessage, wanted: SubscriptionFilter, command: RemotingCommand, grown: GrownQueues, seen: int
    ) -> PollAttempt:
        """Return an attempt that examines the queues that have grown since `seen`, and the retries."""

        def attempt(is_over: bool) -> bytes | None:
            nonlocal seen
            newest, is_complete = self._fetcher.newest(request, grown, seen)
            seen = grown.number
            response = PopResponse(request, wanted, self._broker.now_ms())
            response.sources, response.is_partial = newest, True
            cold = self._fetcher.fill(response)
            frame = self._answer(response, command)
            if frame is not None:
                return frame
            # The next pop examines all queues, and reads the disk.
            is_complete = is_complete and cold is None and not response.is_cut_short
            return None if is_complete and not is_over else no_message_frame(command)

        return attempt

    async def _notify_wide(
        self, request: NotificationRequest, command: RemotingCommand, channel: Channel
    ) -> bytes | None:
        grown = self._long_polls.record_growth(request.topic)
        seen = grown.number
        async with self._scan_turn:
            if not channel.is_open or self._is_late(request):
                return _notification_frame(command, has_message=False)
            for sources in self._fetcher.steps(request, grown):
                if (opening := self._fetcher.load_positions_of(request.group, sources)) is not None:
                    await opening
                if self._has_message(request, [queue for queue, _ in sources]):
                    return _notification_frame(command, has_message=True)
                await asyncio.sleep(0)

        def attempt(is_over: bool) -> bytes | None:
            nonlocal seen
            newest, is_complete = self._fetcher.newest(request, grown, seen)
            seen = grown.number
            has_message = not is_complete or self._has_message(request, [queue for queue, _ in newest])
            return _notification_frame(command, has_message=has_message) if has_message or is_over else None

        if command.flag & ONE_WAY_FLAG or not self._park(request, command, channel, attempt):
            return _notification_frame(command, has_message=False)
        return None

    # -- long polling -------------------------------------------------------------------------------------------------

    def _park(
        self,
        request: PopMessage | NotificationRequest,
        command: RemotingCommand,
        channel: Channel,
        attempt: PollAttempt,
    ) -> bool:
        """Park a request. Return whether it is parked or answered.

        If too many requests are parked, it is answered at once with RocketMQ 5's code for that (POLLING_FULL).
        """
        spent_ms = self._broker.now_ms() - request.born_ms if request.born_ms > 0 else 0
        remaining_ms = request.poll_ms - spent_ms - _ANSWER_TRAVEL_MS
        long_poll_ms = min(remaining_ms, request.poll_ms, self._broker.settings.long_poll_ms_max)
        is_wide = self._fetcher.is_wide(request.topic, request.queue_id)
        queues = [Queue(request.topic, ANY_QUEUE)] if is_wide else self._fetcher.queues(request.topic, request.queue_id)
        if not request.in_order:
            queues += filter(None, [self._fetcher.retry_queue(request.group, request.topic)])
        if long_poll_ms <= 0 or not queues:
            return False

        def resume(_: ParkedRequest, is_over: bool) -> bool:
            if not channel.is_open:
                return True
            try:
                if channel.is_crowded and isinstance(request, PopMessage):
                    frame = no_message_frame(command)  # it pops again when it has read the responses to other pops
                else:
                    frame = attempt(is_over)
            except Exception as error:
                frame = encode_error(command, error, peer=channel.address)
            if frame is None:
                return False
            channel.write(frame)
            return True

        try:
            self._long_polls.park(ParkedPop(request, queues, resume, channel, command.code), long_poll_ms)
        except Busy as refusal:
            frame = (
                HandlerResponse(NotificationResponse(False, polling_full=True))
                if isinstance(request, NotificationRequest)
                else None
            )
            full = encode_response(
                command, frame or HandlerResponse(code=ResponseCode.POLLING_FULL, remark=str(refusal))
            )
            if full is not None:
                channel.write(full)
            return True
        # Another thread may have made messages visible before the request was parked (synchronous flush does).
        for queue in queues:
            if queue.id == ANY_QUEUE or self._fetcher.has_more(request.group, queue):
                self._long_polls.wake(queue)
        return True


def _notification_frame(command: RemotingCommand, *, has_message: bool) -> bytes | None:
    return encode_response(command, HandlerResponse(NotificationResponse(has_message)))
