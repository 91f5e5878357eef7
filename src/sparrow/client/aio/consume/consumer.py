"""The asyncio consumer: subscribes, shares the queues of its topics with its group, delivers messages, commits offsets.

Messages are taken in one of three ways, one for the life of a consumer: a handler (`start`), `async for`, or `poll`;
or in batches, by `start_batches` or `poll_batch`.

Delivery is at least once: a message may be delivered again after a crash, or when a queue moves to another member. With
`at_most_once` it is never delivered again, and lost if it is not handled.

A consumer without a group reads every queue from its end on. Its offsets are not kept, and a message that its handler
rejects is not delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Unpack, cast

from sparrow import clock
from sparrow.client.aio.admin.resend import ResendResult, make_resend_request, resend_messages
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.connection.session_client import SessionClient
from sparrow.client.aio.consume.handler_delivery import CommitFirst, MessageHandler, make_delivery
from sparrow.client.aio.consume.membership import GroupMembership
from sparrow.client.aio.consume.polled_delivery import PolledDelivery
from sparrow.client.aio.consume.pull import PullResult, pull
from sparrow.client.aio.consume.queue_fetcher import FetchedMessage
from sparrow.client.aio.consume.send_back import FailurePolicy, SendBackEach, choose_failure_policy
from sparrow.client.aio.consume.topic_lanes import TopicLanes, has_lanes
from sparrow.client.aio.tracer import Tracer, trace_producer_group
from sparrow.client.consume.pulled_batch import PulledBatch, as_batch
from sparrow.client.consume.subscription import Subscription
from sparrow.client.handler_checks import require_coroutine_function
from sparrow.client.message_spans import spans_around
from sparrow.client.option_checks import validate_value
from sparrow.client.options import (
    CONSUMER_DEFAULTS,
    AtLeastOne,
    ConsumerOptions,
    NotNegative,
    StartPosition,
    complete_options,
)
from sparrow.extras import require
from sparrow.model.errors import GroupRequired, Refused
from sparrow.model.message import StoredMessage
from sparrow.model.priority import Priority
from sparrow.model.protocol import EXPRESSION_TAG, SUBSCRIBE_ALL
from sparrow.model.queue import QueueRef
from sparrow.model.topic import validate_group_name
from sparrow.wire.undecodable import OnUndecodable

if TYPE_CHECKING:
    import pyarrow as pa


class Consumer(SessionClient):
    """A member of a consumer group; with `group=None`, a reader of the messages that arrive from now on.

    ```python
    async with Consumer(group="billing") as consumer:
        await consumer.subscribe("orders", "paid || shipped")
        async for message in consumer:
            print(message.body)
    ```
    """

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        group: str | None,
        session: ClientSession | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """Create a consumer; `ConsumerOptions` describes the options.

        `session`: use the connections and credentials of another client, which then has to close them.
        """
        chosen = complete_options("Consumer", options, CONSUMER_DEFAULTS, ConsumerOptions)
        if group is None and (chosen["trace"] or chosen["offsets_path"] is not None):
            raise GroupRequired("a trace of what handlers do" if chosen["trace"] else "keeping progress in a file")
        self.group = None if group is None else validate_group_name(group)
        self._owns_session = session is None
        self.session = session or ClientSession(
            name_servers,
            instance_name=chosen["instance_name"],
            timeout_ms=chosen["timeout_ms"],
            credentials=chosen["credentials"],
            tls=chosen["tls"],
        )
        self._membership = GroupMembership(self.session, self.group, chosen)
        self.mode = self._membership.mode
        # Without a group no message is delivered again, so a failed one is skipped at once.
        is_once = self._is_at_most_once = chosen["at_most_once"]
        self._retries_max = chosen["retries_max"] if group is not None and not is_once else 0
        self._failure_policy = choose_failure_policy(self.session, self.group, chosen)
        self._starvation_ms = chosen["starvation_ms"]
        self._traces = chosen["trace"]
        self._tracer: Tracer | None = None
        self._closing = asyncio.Lock()

    # -- opening, closing, subscribing --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the session. `async with` does it."""
        self._membership.is_closed = False
        await self.session.open()

    async def close(self, grace_s: float = 10.0) -> None:
        """Wait up to `grace_s` for running handlers, commit, and leave the group."""
        self._membership.is_closed = True
        async with self._closing:  # a second call waits for the first
            if self._membership.delivery is not None:
                await self._membership.leave(grace_s)
            if self._tracer is not None:
                tracer, self._tracer = self._tracer, None
                await tracer.close()
        if self._owns_session:
            await self.session.close()

    async def subscribe(
        self, topic: str, expression: str = SUBSCRIBE_ALL, *, expression_type: str = EXPRESSION_TAG
    ) -> None:
        """Subscribe to a topic: to all messages, to some tags (`"a || b"`), or by an SQL92 condition.

        A consumer without a group gets the messages that arrive from now on.
        """
        await self._membership.subscribe(topic, expression, expression_type)

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic."""
        await self._membership.unsubscribe(topic)

    async def assign(self, queues: Iterable[QueueRef], expression: str = SUBSCRIBE_ALL) -> None:
        """Read exactly these queues, whatever other members of the group read. Offsets are committed as usual."""
        await self._membership.assign(queues, expression)

    # -- taking messages ----------------------------------------------------------------------------------------------

    async def start(
        self, handler: MessageHandler, *, workers: int = 20, batch: int | None = None, orderly: bool = False
    ) -> None:
        """Start to pass messages to a coroutine function, and return at once.

        `batch`: the handler gets lists of up to this many messages. `orderly`: the messages of a queue are handled one
        after the other. When the handler raises, the message is delivered again later; `raise RetryLater(level)`
        chooses when, `raise DeadLetter()` gives it up. Without a group a failed message is logged and skipped.
        """
        require_coroutine_function(handler, "the handler")
        validate_value("workers", workers, AtLeastOne, "start")
        validate_value("batch", batch, AtLeastOne | None, "start")
        await self._start(handler, self._failure_policy, workers=workers, batch=batch, orderly=orderly)

    async def start_batches(
        self, handler: Callable[[PulledBatch], Awaitable[object]], *, workers: int = 4, orderly: bool = False
    ) -> None:
        """Start to pass what each pull returns to a coroutine function, as a `PulledBatch`, and return at once.

        When the handler raises, every message of the batch is delivered again later. The rest is as in `start`.
        """
        require("numpy", "pyarrow", extra="tables", for_="Consumer.start_batches")
        require_coroutine_function(handler, "the handler")
        validate_value("workers", workers, AtLeastOne, "start_batches")

        async def handle(given: StoredMessage | PulledBatch) -> None:
            await handler(as_batch(given))

        policy = SendBackEach(self._failure_policy)
        await self._start(handle, policy, workers=workers, batch=None, orderly=orderly, takes_batches=True)

    async def _start(
        self,
        handler: MessageHandler,
        policy: FailurePolicy,
        *,
        workers: int,
        batch: int | None,
        orderly: bool,
        takes_batches: bool = False,
    ) -> None:
        delivery = make_delivery(
            await self._traced(handler),
            policy,
            workers=None if orderly else workers,
            batch=batch,
            retries_max=self._retries_max,
            lanes=self._topic_lanes(),
            commit_first=self._commit_first,
        )
        await self._membership.join(delivery, is_orderly=orderly, takes_batches=takes_batches)

    @property
    def _commit_first(self) -> CommitFirst | None:
        return self._membership.queues.commit_first if self._is_at_most_once else None

    def _topic_lanes(self) -> TopicLanes:
        # Messages that are committed before they are delivered must be taken in the order of their queue.
        session = None if self._is_at_most_once else self.session
        return TopicLanes(partial(has_lanes, session), starvation_ms=self._starvation_ms)

    async def _traced(self, handler: MessageHandler) -> MessageHandler:
        handler = spans_around(handler, self.group or "")
        if not self._traces or self.group is None:
            return handler
        if self._tracer is None:
            from sparrow.client.aio.produce.producer import Producer

            producer = Producer(group=trace_producer_group(self.group), session=self.session)
            await self.session.open()
            self._tracer = Tracer(self.session, self.group, producer)
            await self._tracer.open()
        return self._tracer.around(handler)

    async def poll(self, count_max: int = 32, *, timeout_ms: int = 1_000) -> list[StoredMessage]:
        """Return some messages, or none when the time is up. The messages of earlier polls count as consumed."""
        if type(count_max) is not int or count_max < 0 or timeout_ms < 0:
            validate_value("count_max", count_max, NotNegative, "poll")
            validate_value("timeout_ms", timeout_ms, NotNegative, "poll")
        delivery = await self._polled_delivery()
        delivery.finish()
        return await delivery.take(count_max, timeout_ms / 1000)

    async def poll_batch(self, *, timeout_ms: int = 1_000) -> PulledBatch | None:
        """Return the messages of one pull, or None when the time is up. Those of earlier polls count as consumed."""
        require("numpy", "pyarrow", extra="tables", for_="Consumer.poll_batch")
        validate_value("timeout_ms", timeout_ms, NotNegative, "poll_batch")
        delivery = await self._polled_delivery(takes_batches=True)
        delivery.finish()
        taken = await delivery.take(1, timeout_ms / 1000)
        return cast(PulledBatch, taken[0]) if taken else None

    async def __anext__(self) -> StoredMessage:
        """Return the next message. The one before counts as consumed."""
        delivery = await self._polled_delivery()
        delivery.finish()
        while True:
            taken = await delivery.take(1, None)
            if taken:
                return taken[0]
            if delivery.is_stopped:
                raise StopAsyncIteration

    def __aiter__(self) -> Consumer:
        return self

    async def commit(self) -> None:
        """Count everything taken so far as consumed, and return when the brokers have stored the offsets."""
        if isinstance(self._membership.delivery, PolledDelivery):
            self._membership.delivery.finish()
        await self._membership.queues.commit(is_last=True)

    async def _polled_delivery(self, *, takes_batches: bool = False) -> PolledDelivery:
        if self._membership.delivery is None:
            fresh = PolledDelivery(self._topic_lanes(), self._commit_first)
            await self._membership.join(fresh, takes_batches=takes_batches)
        elif self._membership.queues.takes_batches is not takes_batches:
            raise Refused("this consumer takes either messages or batches, and has begun with the other: use another")
        if not isinstance(self._membership.delivery, PolledDelivery):
            raise Refused(
                "this consumer passes its messages to the handler of start(), and cannot be polled as well: "
                "poll another consumer, or leave out start()"
            )
        return self._membership.delivery

    # -- positions ----------------------------------------------------------------------------------------------------

    @property
    def queues(self) -> list[QueueRef]:
        """The queues that this consumer reads now."""
        return self._membership.queues.queues()

    async def wait_for_assignment(self) -> None:
        """Wait until queues have been assigned for the first time."""
        await self._membership.wait_for_assignment()

    def positions(self, topic: str | None = None) -> dict[QueueRef, int]:
        """Return the offset of each queue up to which messages are consumed."""
        return self._membership.positions(topic)

    async def seek(self, queue: QueueRef, offset: int) -> None:
        """Continue a queue from another offset."""
        await self._membership.seek(queue, offset)

    async def seek_to_time(self, queue: QueueRef, time_ms: int) -> None:
        """Continue a queue from the first message stored at or after a time."""
        await self.seek(queue, await self._membership.rebalancer.offset_at(queue, time_ms))

    def pause(self, queues: Iterable[QueueRef] | None = None) -> None:
        """Stop pulling from some queues, or from all, until `resume`. Fetched messages are still delivered."""
        self._membership.queues.set_paused(queues, True)

    def resume(self, queues: Iterable[QueueRef] | None = None) -> None:
        """Pull again from paused queues."""
        self._membership.queues.set_paused(queues, False)

    # -- reading beside the subscriptions -----------------------------------------------------------------------------

    async def pull(
        self,
        queue: QueueRef,
        offset: int,
        *,
        count_max: int = 32,
        expression: str = SUBSCRIBE_ALL,
        long_poll_ms: int = 0,
    ) -> PullResult:
        """Pull once from a queue, without affecting the group's offsets."""
        subscription = Subscription.of(queue.topic, expression, version_ms=clock.now_ms())
        return await pull(
            self.session,
            queue,
            offset,
            group=self._membership.request_group,
            subscription=subscription,
            count_max=count_max,
            long_poll_ms=long_poll_ms,
            includes_subscription=True,
        )

    async def resend(
        self,
        topic: str,
        *,
        begin: int | None = None,
        end: int | None = None,
        queue_id: int | None = None,
        priority: Priority | str | None = None,
        keys: str | Iterable[str] | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
    ) -> ResendResult:
        """Have messages delivered once more to this group; `Admin.resend` describes the arguments."""
        if self.group is None:
            raise GroupRequired("to have messages resent")
        request = make_resend_request(
            topic,
            self.group,
            begin=begin,
            end=end,
            queue_id=queue_id,
            priority=priority,
            keys=keys,
            from_ms=from_ms,
            to_ms=to_ms,
            dry_run=False,
            force=False,
        )
        return await resend_messages(self.session, await self.session.route(topic), request, None)

    async def read_table(
        self,
        topic: str,
        start: StartPosition | int = "first",
        end: StartPosition | int = "last",
        *,
        expression: str = SUBSCRIBE_ALL,
        columns: Iterable[str] | None = None,
        on_undecodable: OnUndecodable = "null",
    ) -> pa.Table:
        """Read the messages of a topic between two positions as an Arrow table; an int is a time in ms.

        A body that does not decompress is null, and the column `decode_error` says why; `on_undecodable` can also be
        `skip` (leave out the row) or `raise`.
        """
        require("numpy", "pyarrow", extra="tables", for_="Consumer.read_table")
        from sparrow.client.aio.consume.table_reader import read_table

        validate_value("start", start, StartPosition | int, "read_table")
        validate_value("end", end, StartPosition | int, "read_table")
        validate_value("on_undecodable", on_undecodable, OnUndecodable, "read_table")
        return await read_table(
            self.session,
            self._membership.request_group,
            topic,
            start,
            end,
            expression=expression,
            columns=columns,
            on_undecodable=on_undecodable,
        )


async def fetch_items(
    consumer: Consumer,
    count_max: int,
    timeout_s: float | None,
    *,
    in_lanes_max: int | None = None,
    takes_batches: bool = False,
) -> list[FetchedMessage]:
    """Take messages with their fetchers, for the blocking client and the event bus.

    The caller reports them with `mark_consumed`. The first call joins the group. `in_lanes_max`: the limit in topics
    with priority lanes, because a message that is taken can no longer be overtaken.
    """
    delivery = await consumer._polled_delivery(takes_batches=takes_batches)
    return await delivery.fetch_items(count_max, timeout_s, in_lanes_max=in_lanes_max)
