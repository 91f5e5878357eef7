"""The sender of requests: retries one send until it is stored, refused, or out of time.

1. At most `1 + retries` attempts within one deadline. The next attempt goes to another broker if there is one, and an
   attempt leaves time for the next: a broker that hangs delays the message but does not lose it.
2. A request for one queue is tried there only: another queue would break the order that was requested.
3. After a broker could not be reached, the route is fetched again.
4. An attempt without a response may have been stored: a message can be stored twice, under one unique id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from random import getrandbits
from typing import TYPE_CHECKING, NamedTuple

from sparrow import clock
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.connection.topic_report import report_unknown_topic
from sparrow.client.health import cause_of
from sparrow.client.option_checks import validate_value
from sparrow.client.options import AtLeastOne
from sparrow.client.produce.latency_fault import LatencyFaultTolerance
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import (
    Busy,
    ConnectionLost,
    NoMaster,
    Refused,
    RequestTimeout,
    SparrowError,
    Unavailable,
    UnknownTopic,
)
from sparrow.model.protocol import AUTO_CREATE_TOPIC
from sparrow.model.queue import QueueRef
from sparrow.model.send_result import SendStatus
from sparrow.model.topic import validate_topic_name
from sparrow.net.channel import Channel
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import SendMessage, SendMessageV2

if TYPE_CHECKING:  # send_log imports this module
    from sparrow.client.produce.send_log import SendLog

SEND_STATUS_BY_RESPONSE = {
    int(ResponseCode.SUCCESS): SendStatus.OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}
"""Response codes that mean the message is stored."""

RETRIED_RESPONSE_CODES = frozenset(
    {
        int(ResponseCode.SYSTEM_ERROR),
        int(ResponseCode.SYSTEM_BUSY),
        int(ResponseCode.SERVICE_NOT_AVAILABLE),
        int(ResponseCode.NO_PERMISSION),
        int(ResponseCode.TOPIC_NOT_EXIST),
        int(ResponseCode.NO_BUYER_ID),
        int(ResponseCode.NOT_IN_CURRENT_UNIT),
        int(ResponseCode.GO_AWAY),
    }
)
"""Response codes after which RocketMQ's producers try another broker."""

SAME_BROKER_BACKOFF_MS = 50
"""Pause before a broker that failed is tried again; it grows with each attempt."""

NO_MASTER_BACKOFF_MS = 100
"""Pause before a route without a master is fetched again."""

REMEMBERED_TOPICS_MAX = 4096
"""Limit of topics whose position is remembered; beyond it all start anew, which is harmless."""


class SendPayload(NamedTuple):
    """The content of one send request: a message, or a batch."""

    body: bytes | memoryview
    properties: str = ""
    flag: int = 0
    sys_flag: int = 0
    is_batch: bool = False


class SendOutcome(NamedTuple):
    """The queue that stored a payload, and the broker's response."""

    queue: QueueRef
    status: SendStatus
    answer: RemotingCommand


class Sender:
    """Sends payloads of one producer group."""

    def __init__(
        self,
        session: ClientSession,
        *,
        group: str,
        retries: int,
        default_topic_queues: int,
        send_log: SendLog | None = None,
    ) -> None:
        self.send_log = send_log
        self.latency_faults = LatencyFaultTolerance()
        self._session, self._group = session, group
        self._attempts = 1 + retries
        self._template_queues = default_topic_queues
        self._counters: dict[str, count[int]] = {}

    # -- where to -----------------------------------------------------------------------------------------------------

    def cached_route(self, topic: str) -> TopicRoute | None:
        """Return the known route if it has a queue to send to."""
        found = self._session.cached_route(topic, for_sends=True)
        return found if found is not None and found.write_queues else None

    async def route(self, topic: str, *, is_fresh: bool = False) -> TopicRoute:
        """Return the route of a topic, with at least one queue to send to."""
        found = None if is_fresh else self.cached_route(topic)
        if found is None:
            validate_topic_name(topic)
            # A known route without a master is fetched again: another broker may have taken over.
            is_fresh |= self._session.cached_route(topic, for_sends=True) is not None
            found = await self._session.route(topic, is_fresh=is_fresh, default_topic_queues=self._template_queues)
        if not found.write_queues:
            raise NoMaster(
                f"topic {topic!r} has no writable queue on a master broker now: try again, or start its broker"
            )
        return found

    def _choose(self, topic: str, queues: Sequence[QueueRef], now_ms: int, last_broker: str | None) -> QueueRef:
        counter = self._counters.get(topic)
        if counter is None:
            if len(self._counters) >= REMEMBERED_TOPICS_MAX:
                self._counters.clear()
            # A random start, or all restarted producers would begin with the same queue.
            counter = self._counters[topic] = count(getrandbits(31))
        return self.latency_faults.select(queues, next(counter), now_ms, last_broker)

    async def _channel(self, route: TopicRoute, queue: QueueRef, deadline: float) -> Channel:
        address = route.masters.get(queue.broker_name)
        if address is None:
            raise Unavailable(f"broker {queue.broker_name!r} of topic {route.topic!r} has no master now")
        channel = self._session.cached_channel(address)
        if channel is None or channel.is_blocked:
            try:
                async with asyncio.timeout_at(deadline):
                    channel = await self._session.channel(address)
                    await channel.writable()
            except TimeoutError as cause:
                raise ConnectionLost(address, "it accepted no more bytes in time") from cause
        return channel

    # -- sending ------------------------------------------------------------------------------------------------------

    async def send(
        self, topic: str, payload: SendPayload, *, queue: QueueRef | None = None, timeout_ms: int
    ) -> SendOutcome:
        """Send a payload; it is stored when this returns. Otherwise raise the error of the last attempt."""
        try:
            outcome = await self._send(topic, payload, queue, timeout_ms)
        except SparrowError as error:
            if self.send_log is not None and self.send_log.is_enabled:
                self.send_log.failed(topic, payload, error)
            await self._report(topic, error)
            raise
        if self._session.health.lasting:
            self._session.health.clear(topic, part=self)
        if self.send_log is not None and self.send_log.is_enabled:
            self.send_log.stored(payload, outcome)
        return outcome

    async def _report(self, topic: str, error: SparrowError) -> None:
        """Report what keeps messages of a topic from being sent. A refusal of one message does not."""
        what = f"producer group {self._group!r} cannot send to topic {topic!r}"
        names = self._session.name_servers_text
        if isinstance(error, RequestTimeout) and error.address == names:
            self._session.health.report_error(error, "no name server can be used", address=names)
        elif isinstance(error, UnknownTopic):
            otherwise = "set auto_create_topics on the brokers"
            await report_unknown_topic(self._session, error, topic, what, part=self, otherwise=otherwise)
        elif isinstance(error, Unavailable) or cause_of(error) == "not permitted":
            self._session.health.report_request(error, what, topic=topic, part=self)

    async def _send(self, topic: str, payload: SendPayload, queue: QueueRef | None, timeout_ms: int) -> SendOutcome:
        _check_queue(topic, queue)
        if timeout_ms <= 0:
            validate_value("timeout_ms", timeout_ms, AtLeastOne, "send")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        failure: SparrowError | None = None
        tried: list[str] = []
        while len(tried) < self._attempts and (failure is None or loop.time() < deadline):
            route = self.cached_route(topic) or await self._route_by(topic, deadline, timeout_ms)
            last_broker = tried[-1] if tried else None
            target = queue or self._choose(topic, route.write_queues, int(loop.time() * 1000), last_broker)
            if target.broker_name == last_broker:
                left_s = deadline - loop.time()
                await asyncio.sleep(min(SAME_BROKER_BACKOFF_MS * len(tried) / 1000, left_s))
            now = loop.time()
            # If another broker can be tried, this attempt gets only its share of the time.
            shares = self._attempts - len(tried) if queue is None and len(route.masters) > 1 else 1
            tried.append(target.broker_name)
            outcome = await self._attempt(route, target, payload, now + (deadline - now) / shares)
            if isinstance(outcome, SendOutcome):
                return outcome
            failure = outcome
        assert failure is not None
        if len(tried) > 1:
            failure.add_note(f"tried {len(tried)} times: {', '.join(tried)}")
        raise failure

    async def _attempt(
        self, route: TopicRoute, target: QueueRef, payload: SendPayload, deadline: float
    ) -> SendOutcome | SparrowError:
        """Return the outcome, or an error after which another attempt makes sense."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        code = RequestCode.SEND_BATCH_MESSAGE if payload.is_batch else RequestCode.SEND_MESSAGE_V2
        try:
            channel = await self._channel(route, target, deadline)
            left_ms = max(1, int((deadline - loop.time()) * 1000))
            header = self._header(target, payload)
            answer = await channel.request(code, header, payload.body, timeout_ms=left_ms)
        except Unavailable as error:
            if not isinstance(error, Busy):  # the limit of our own channel, not of the broker
                self._record_latency(target, begun, failed=True)
                await self._refresh_route(route.topic, deadline)
            return error
        status = SEND_STATUS_BY_RESPONSE.get(answer.code)
        if status is not None:
            self._record_latency(target, begun, failed=False)
            return SendOutcome(target, status, answer)
        refusal = error_for_response(answer.code, answer.remark)
        if answer.code not in RETRIED_RESPONSE_CODES:
            raise refusal
        self._record_latency(target, begun, failed=True)
        # A replica that no longer leads says that its service is not available: the route names the new leader.
        if isinstance(refusal, UnknownTopic) or answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            await self._refresh_route(route.topic, deadline)
        return refusal

    async def send_one_way(
        self, topic: str, payload: SendPayload, *, queue: QueueRef | None = None, timeout_ms: int
    ) -> None:
        """Write a request to the connection, without an acknowledgement."""
        _check_queue(topic, queue)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        route = self.cached_route(topic) or await self._route_by(topic, deadline, timeout_ms)
        target = queue or self._choose(topic, route.write_queues, int(loop.time() * 1000), None)
        channel = await self._channel(route, target, deadline)
        header = self._header(target, payload)
        channel.send_one_way(RequestCode.SEND_MESSAGE_V2, header, payload.body)
        if self.send_log is not None and self.send_log.is_enabled:
            self.send_log.written(topic, payload)

    def _header(self, target: QueueRef, payload: SendPayload) -> SendMessage:
        return SendMessageV2(
            self._group,
            target.topic,
            AUTO_CREATE_TOPIC,
            self._template_queues,
            target.queue_id,
            payload.sys_flag,
            clock.now_ms(),
            payload.flag,
            payload.properties,
            batch=payload.is_batch,
            broker_name=target.broker_name,
        )

    def _record_latency(self, target: QueueRef, begun: float, *, failed: bool) -> None:
        now = asyncio.get_running_loop().time()
        self.latency_faults.record(target.broker_name, (now - begun) * 1000, int(now * 1000), failed=failed)

    async def route_within(self, topic: str, timeout_ms: int) -> TopicRoute:
        """Return the route of a topic; while no broker accepts messages for it, wait until another takes over."""
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        return self.cached_route(topic) or await self._route_by(topic, deadline, timeout_ms)

    async def _route_by(self, topic: str, deadline: float, timeout_ms: int) -> TopicRoute:
        loop, pause_s = asyncio.get_running_loop(), NO_MASTER_BACKOFF_MS / 1000
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await self.route(topic)
            except NoMaster:  # while another broker takes over
                if loop.time() + pause_s >= deadline:
                    raise
                await asyncio.sleep(pause_s)
            except TimeoutError as cause:
                what = f"the request for the route of topic {topic!r}"
                raise RequestTimeout(self._session.name_servers_text, what, timeout_ms) from cause

    async def _refresh_route(self, topic: str, deadline: float) -> None:
        """Fetch the route again; if that fails, the known one stays in use.

        Wait only a quarter of the remaining time, since another broker has to be tried too. The request itself
        continues: the next send uses its result.
        """
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(now + (deadline - now) / 4):
                await self.route(topic, is_fresh=True)
        except (SparrowError, TimeoutError):
            pass


def _check_queue(topic: str, queue: QueueRef | None) -> None:
    if queue is None:
        return
    if not isinstance(queue, QueueRef):
        raise TypeError(
            f"queue={queue!r} is no QueueRef: write queue=QueueRef({topic!r}, broker_name, queue_id); "
            "Admin.route lists the queues of a topic"
        )
    if queue.topic != topic:
        raise Refused(f"a message of topic {topic!r} cannot go to a queue of {queue.topic!r}: use a queue of {topic!r}")
