"""Sends messages.

    async with Producer("127.0.0.1:9876") as producer:
        result = await producer.send(Message.of("orders", b"..."))

1. What `send` returns is stored: on which broker and where, says the result. How safe, says its status.
2. A message is sent again, on another broker first, when a broker fails; its unique id stays, so consumers can tell.
3. Never more than `unsent_bytes_max` is on its way: `send` waits for room, `send_soon` raises `Busy`.
4. With `linger_ms` messages wait for each other and share requests: a hundred thousand and more a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from sparrow.client.aio.accumulator import Accumulator
from sparrow.client.aio.allowance import Allowance
from sparrow.client.aio.batching import Gathering, Results, results_of
from sparrow.client.aio.packing import Packing
from sparrow.client.aio.sending import Sender
from sparrow.client.aio.session import Session
from sparrow.client.select import SHARDING_KEY, Selector, by_sharding_key
from sparrow.model.errors import Busy, Closed, SparrowError
from sparrow.model.message import Message
from sparrow.model.outcome import SendResult
from sparrow.model.topic import checked_group
from sparrow.wire.bodies import BrokerQueue
from sparrow.wire.codes import Code
from sparrow.wire.headers import UnregisterClient

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Of a body, and of a batch: what RocketMQ's clients and brokers allow unless told otherwise."""

_ALONE_COST_BYTES = 1024
_GATHERED_COST_BYTES = 256
"""What a message on its way costs besides its body, about."""

T = TypeVar("T")
_Waiting = tuple[Message, Selector, int, int | None, Results]
"""A message, who chooses its queue, what it is charged, its time-out, and who waits for it."""


class Producer:
    def __init__(
        self,
        name_servers: str = "127.0.0.1:9876",
        *,
        group: str = "sparrow_producer",
        timeout_ms: int = 3_000,
        retries: int = 2,
        linger_ms: float | None = None,
        batch_bytes_max: int = 256 * 1024,
        batch_count_max: int = 1024,
        unsent_bytes_max: int = 64 * 1024 * 1024,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        template_queues: int = 4,
        compress_above_bytes: int | None = 4096,
        selector: Selector | None = None,
        session: Session | None = None,
    ) -> None:
        """`timeout_ms` is for all attempts of a send together. `template_queues`: how many a topic gets that the first
        message creates. `session`: share another client's connections; it is then not ours to close."""
        self.group, self.timeout_ms = checked_group(group), timeout_ms
        self.session = session or Session(name_servers, timeout_ms=timeout_ms)
        self._owns_session = session is None
        self._selector, self._by_sharding_key = selector, by_sharding_key()
        self._sender = Sender(self.session, group=group, retries=retries, template_queues=template_queues)
        self._packing = Packing(
            self.session.unique_ids, compress_above_bytes=compress_above_bytes, message_bytes_max=message_bytes_max
        )
        self._allowance = Allowance(unsent_bytes_max)
        self._gathering = (
            Gathering(linger_s=linger_ms / 1000, bytes_max=batch_bytes_max, count_max=batch_count_max)
            if linger_ms is not None
            else None
        )
        self._cost_bytes = _ALONE_COST_BYTES if linger_ms is None else _GATHERED_COST_BYTES
        self._accumulator: Accumulator | None = None
        self._unrouted: dict[str, list[_Waiting]] = {}
        """Messages whose queue cannot be chosen before the route is known."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._beating: asyncio.Task[None] | None = None
        self._is_open = False

    # -- opening and closing ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._is_open:
            return
        await self.session.open()
        self.session.producers.add(self.group)
        self.session.on_routes_changed.append(self._introduce)
        if self._gathering is not None:
            self._accumulator = Accumulator(
                self._sender, self._packing, self._allowance, self._gathering, timeout_ms=self.timeout_ms
            )
        self._is_open = True

    async def close(self) -> None:
        """Sends what still lingers, takes leave of the brokers, and hangs up."""
        if not self._is_open:
            return
        self._is_open = False
        await self.flush()
        if self._beating is not None:
            await asyncio.wait([self._beating])
        self.session.on_routes_changed.remove(self._introduce)
        self.session.producers.discard(self.group)
        header = UnregisterClient(self.session.client_id, producer_group=self.group)
        addresses = [
            address
            for address in self.session.broker_addresses(masters_only=True)
            if self.session.channel_now(address) is not None
        ]
        await asyncio.gather(
            *(self.session.ask(address, Code.UNREGISTER_CLIENT, header) for address in addresses),
            return_exceptions=True,  # who cannot be told will miss our heartbeats
        )
        if self._owns_session:
            await self.session.close()

    async def __aenter__(self) -> Producer:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _introduce(self, _topic: str) -> None:
        """A broker that has just come into a route hears of us now, not half a minute later."""
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self.session.heartbeat())

    # -- sending ------------------------------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: BrokerQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Stored when this returns. A message for one queue, given or selected, is tried only there."""
        self._check_open()
        cost = len(message.body) + self._cost_bytes
        if not self._allowance.take_now(cost):
            await self._allowance.take(cost)
        if self._accumulator is not None:
            return await self._gather(self._accumulator, message, cost, queue, selector, timeout_ms)
        try:
            return await self._send_alone(message, queue, selector, timeout_ms)
        finally:
            self._allowance.give(cost)

    def send_soon(
        self,
        message: Message,
        *,
        queue: BrokerQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """The cheap road for many: a plain function, and a future of what `send` returns.

        `Busy` when too much is on its way already: wait for an earlier future, or `flush`, then go on.
        """
        if not self._is_open:
            raise Closed("the producer")
        cost = len(message.body) + self._cost_bytes
        if not self._allowance.take_now(cost):
            raise Busy(f"{self._allowance.taken} bytes of messages are unsent; {self._allowance.bytes_max} are allowed")
        if self._accumulator is not None:
            return self._gather(self._accumulator, message, cost, queue, selector, timeout_ms)
        task = self._spawn(self._send_alone(message, queue, selector, timeout_ms))
        task.add_done_callback(lambda _: self._allowance.give(cost))
        return task

    async def send_batch(
        self, messages: Sequence[Message], *, queue: BrokerQueue | None = None, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """All messages, of one topic, in one request to one queue: stored together, one after the other, or not."""
        self._check_open()
        parcel, ids = self._packing.together(messages)
        cost = len(parcel.body) + _ALONE_COST_BYTES
        await self._allowance.take(cost)
        try:
            delivery = await self._sender.deliver(
                messages[0].topic, parcel, queue=queue, timeout_ms=timeout_ms or self.timeout_ms
            )
        finally:
            self._allowance.give(cost)
        return results_of(delivery, ids)

    async def send_one_way(
        self, message: Message, *, queue: BrokerQueue | None = None, selector: Selector | None = None
    ) -> None:
        """Handed to the connection when this returns. Nobody will say whether it arrived."""
        self._check_open()
        body, properties, _ = self._packing.checked(message)
        parcel = await self._packing.alone(message, body, properties)
        target = queue or await self._selected(message, selector)
        await self._sender.tell(message.topic, parcel, queue=target, timeout_ms=self.timeout_ms)

    async def send_table(
        self,
        topic: str,
        table: Any,
        *,
        body: str = "body",
        keys: str | None = "keys",
        tags: str | None = "tags",
        properties: str | None = "properties",
        queue: BrokerQueue | None = None,
        in_flight: int = 4,
        timeout_ms: int | None = None,
    ) -> int:
        """Every row of an Arrow table, a record batch or a pandas frame as a message, without a loop over rows; how
        many there were. Names are those of columns: `body` must be there, the others may be missing.

        Batches go to the queues in turn, `in_flight` at a time, so rows keep their order only within a batch; for one
        `queue` they follow each other and rows keep theirs. Rows get no unique id. `PartlySent` when a batch fails.
        """
        from sparrow.client.aio import tables  # loads NumPy and Arrow, which a plain producer does without

        self._check_open()
        columns = tables.columns_of(table, body=body, keys=keys, tags=tags, properties=properties)
        return await tables.send(
            self._sender,
            self._allowance,
            topic,
            columns,
            queue=queue,
            in_flight=in_flight,
            timeout_ms=timeout_ms or self.timeout_ms,
        )

    async def flush(self) -> None:
        """Returns once everything sent so far is stored, or has failed: its futures say which."""
        tasks = [task for task in self._tasks if not task.done()]
        if tasks:
            await asyncio.wait(tasks)
        if self._accumulator is not None:
            await self._accumulator.flush()

    # -- one message --------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._is_open:
            raise Closed("the producer")

    async def _send_alone(
        self, message: Message, queue: BrokerQueue | None, selector: Selector | None, timeout_ms: int | None
    ) -> SendResult:
        body, properties, message_id = self._packing.checked(message)
        parcel = await self._packing.alone(message, body, properties)
        target = queue or await self._selected(message, selector)
        delivery = await self._sender.deliver(
            message.topic, parcel, queue=target, timeout_ms=timeout_ms or self.timeout_ms
        )
        return results_of(delivery, [message_id])[0]

    def _selector_for(self, message: Message, selector: Selector | None) -> Selector | None:
        selector = selector or self._selector
        if selector is None and message.properties and SHARDING_KEY in message.properties:
            return self._by_sharding_key
        return selector

    async def _selected(self, message: Message, selector: Selector | None) -> BrokerQueue | None:
        """The queue a selector wants; None when any will do."""
        selector = self._selector_for(message, selector)
        return None if selector is None else selector((await self._sender.route(message.topic)).write_queues, message)

    def _gather(
        self,
        accumulator: Accumulator,
        message: Message,
        cost: int,
        queue: BrokerQueue | None,
        selector: Selector | None,
        timeout_ms: int | None,
    ) -> Results:
        try:
            if queue is None:
                # Asked here too, for the many messages that have neither properties nor a selector.
                if message.properties or selector is not None or self._selector is not None:
                    selector = self._selector_for(message, selector)
                if selector is not None:
                    return self._gather_selected(accumulator, message, selector, cost, timeout_ms)
            return accumulator.add(message, queue, cost, timeout_ms)
        except BaseException:
            self._allowance.give(cost)
            raise

    def _gather_selected(
        self, accumulator: Accumulator, message: Message, selector: Selector, cost: int, timeout_ms: int | None
    ) -> Results:
        """Now if the route is known, else once it is: in the order in which they came."""
        future: Results = asyncio.get_running_loop().create_future()
        topic = message.topic
        route = self._sender.route_now(topic)
        waiting = self._unrouted.get(topic)
        if waiting is not None:
            waiting.append((message, selector, cost, timeout_ms, future))
        elif route is not None:
            self._select(accumulator, route.write_queues, (message, selector, cost, timeout_ms, future))
        else:
            self._unrouted[topic] = [(message, selector, cost, timeout_ms, future)]
            self._spawn(self._find_route(accumulator, topic))
        return future

    async def _find_route(self, accumulator: Accumulator, topic: str) -> None:
        try:
            queues = (await self._sender.route(topic)).write_queues
        except SparrowError as error:
            for _, _, cost, _, future in self._unrouted.pop(topic):
                self._allowance.give(cost)
                if not future.done():
                    future.set_exception(error)
            return
        for waiting in self._unrouted.pop(topic):
            self._select(accumulator, queues, waiting)

    def _select(self, accumulator: Accumulator, queues: Sequence[BrokerQueue], waiting: _Waiting) -> None:
        message, selector, cost, timeout_ms, future = waiting
        try:
            accumulator.add(message, selector(queues, message), cost, timeout_ms, future)
        except Exception as error:  # a selector is the caller's, and so is whatever it raises
            self._allowance.give(cost)
            if not future.done():
                future.set_exception(error)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
