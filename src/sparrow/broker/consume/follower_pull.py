"""The pull handler of a follower: it serves what its leader has written and it may show, and creates nothing.

1. A follower may be behind its leader. What it does not have, it does not know to be missing: it never tells a consumer
   that its offset has moved (21), which consumers would store.
2. Whatever it cannot answer goes to the leader: the consumer gets "again" (20) with the advice to pull from broker 0.
   The answer waits a moment, so that a consumer whose route has no leader does not ask in a circle.
3. While no leader is known, pulls are parked as at a leader.
"""

from __future__ import annotations

import asyncio

from sparrow.broker.clients.subscriptions import SubscriptionFilter
from sparrow.broker.consume.long_poll import ParkedRequest
from sparrow.broker.consume.pull import PullHandler
from sparrow.broker.consume.pull_response import AGAIN, encode_found, encode_pull
from sparrow.model.errors import Refused
from sparrow.model.protocol import MASTER_BROKER_ID
from sparrow.model.queue import Queue
from sparrow.model.topic import Group
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import HandlerResponse, InlineResult, encode_error, encode_response
from sparrow.store.spi import ReadResult, Slice
from sparrow.wire import headers
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand
from sparrow.wire.headers import PullMessage

LEADER_ADVICE_MS = 500
"""How long an answer that sends a consumer to the leader waits for the follower to catch up."""


class FollowerPullHandler(PullHandler):
    """Handles pulls (11) and lite pulls (361) at a follower."""

    def pull(self, command: RemotingCommand, channel: Channel) -> InlineResult:
        request = headers.read(PullMessage, command.ext)
        queue = Queue(request.topic, request.queue_id)
        try:
            # A group that is not known yet may be new, and what forbids it arrives with its record.
            self._check(request, self._groups.get(request.group) or Group(name=request.group))
            wanted = self._filter_of(request)
        except Refused as refusal:
            return (
                self._send_to_leader(request, command) if self._broker.has_leader() else encode_error(command, refusal)
            )
        if isinstance(wanted, HandlerResponse):
            return (
                self._send_to_leader(request, command)
                if self._broker.has_leader()
                else encode_response(command, wanted)
            )
        found = self._read_now(queue, request.offset, request, wanted)
        if found is None:
            return self._from_disk(request, command, channel, queue, wanted)
        return self._answer(request, command, channel, queue, wanted, found)

    async def _send_to_leader(self, request: PullMessage, command: RemotingCommand) -> bytes | None:
        await asyncio.sleep(LEADER_ADVICE_MS / 1000)
        return self._encode_again(command, Queue(request.topic, request.queue_id), request.offset)

    def _answer(
        self,
        request: PullMessage,
        command: RemotingCommand,
        channel: Channel,
        queue: Queue,
        wanted: SubscriptionFilter,
        found: ReadResult,
    ) -> bytes | None:
        if isinstance(found, Slice):
            return self._encode_slice(request, command, queue, found)
        if request.sys_flag & headers.pull.SUSPEND_FLAG and not command.flag & ONE_WAY_FLAG:
            self._park(request, command, channel, queue, wanted)
            return None
        return self._encode_again(command, queue, request.offset)

    def _long_poll_ms(self, request: PullMessage) -> int:
        longest_ms = super()._long_poll_ms(request)
        return min(longest_ms, LEADER_ADVICE_MS) if self._broker.has_leader() else longest_ms

    def _retry(
        self,
        request: PullMessage,
        command: RemotingCommand,
        parked: ParkedRequest,
        wanted: SubscriptionFilter,
        is_over: bool,
    ) -> bytes | None:
        while isinstance(found := self._read_now(parked.queue, parked.offset, request, wanted), Slice):
            if found.sizes:
                return self._encode_slice(request, command, parked.queue, found)
            parked.offset = found.next_offset
        if found is None or is_over:
            return self._encode_again(command, parked.queue, parked.offset)
        return None

    def _encode_slice(self, request: PullMessage, command: RemotingCommand, queue: Queue, found: Slice) -> bytes | None:
        advised = self._broker.advised_broker_id(queue, found)
        if not found.sizes:
            return encode_pull(command, advised, AGAIN, found.next_offset, *found.bounds)
        self._broker.counters.count_pull(request.group, request.topic, len(found.sizes), sum(found.sizes))
        return encode_found(request, command, advised, found)

    def _encode_again(self, command: RemotingCommand, queue: Queue, offset: int) -> bytes | None:
        advised = MASTER_BROKER_ID if self._broker.has_leader() else self._broker.broker_id
        return encode_pull(command, advised, AGAIN, offset, *self._store.bounds_nowait(queue))
