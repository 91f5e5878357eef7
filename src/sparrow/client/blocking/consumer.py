"""The blocking consumer. `sparrow.client.aio.consume.consumer` documents its guarantees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Unpack, cast

from sparrow.client import aio
from sparrow.client.aio.admin.resend import ResendResult
from sparrow.client.aio.consume.consumer import fetch_items
from sparrow.client.aio.consume.handler_delivery import MessageHandler
from sparrow.client.aio.consume.pull import PullResult
from sparrow.client.blocking.blocking_client import BlockingClient
from sparrow.client.blocking.fetch_buffer import FetchBuffer
from sparrow.client.consume.pulled_batch import PulledBatch
from sparrow.client.handler_checks import refuse_awaitable, require_plain_function
from sparrow.client.option_checks import validate_value
from sparrow.client.options import AtLeastOne, ConsumerOptions, NotNegative, StartPosition
from sparrow.extras import require
from sparrow.model.errors import Closed, Refused
from sparrow.model.health import Health
from sparrow.model.message import StoredMessage
from sparrow.model.priority import Priority
from sparrow.model.protocol import EXPRESSION_TAG, SUBSCRIBE_ALL
from sparrow.model.queue import QueueRef
from sparrow.wire.undecodable import OnUndecodable

if TYPE_CHECKING:
    import pyarrow as pa

FETCH_COUNT_MAX = 256
"""Messages that iteration fetches from the loop thread at a time."""
LANES_FETCH_COUNT_MAX = 10
"""The same in topics with priority lanes, because a fetched message can no longer be overtaken."""

BlockingMessageHandler = Callable[[Any], object]
"""Gets a message, or a list of messages if batches are used. If it raises, the message is delivered again later."""


class Consumer(BlockingClient[aio.Consumer]):
    """A member of a consumer group; with `group=None`, a reader of the messages that arrive from now on.

    One thread at a time may take messages from it.

    ```python
    with Consumer(group="billing") as consumer:
        consumer.subscribe("orders", "paid || shipped")
        for message in consumer:
            print(message.body)
    ```
    """

    def __init__(
        self, name_servers: str | None = None, *, group: str | None, **options: Unpack[ConsumerOptions]
    ) -> None:
        """Create a consumer; `ConsumerOptions` describes the options."""
        client = aio.Consumer(name_servers, group=group, **options)
        super().__init__(client, what="the consumer")
        self.group, self.mode = client.group, client.mode
        is_once = options.get("at_most_once", False)
        self._buffer = FetchBuffer(are_committed=is_once)
        # At most once, what is fetched is committed: messages that iteration has not returned would be lost at the end.
        self._fetch_count_max = 1 if is_once else FETCH_COUNT_MAX
        self._fetching: asyncio.Task[Any] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def close(self, grace_s: float = 10.0) -> None:
        """Wait up to `grace_s` for running handlers, commit, and leave the group. Iteration in other threads ends."""
        self._close(self._stop(grace_s))
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def subscribe(self, topic: str, expression: str = SUBSCRIBE_ALL, *, expression_type: str = EXPRESSION_TAG) -> None:
        """Subscribe to a topic: to all messages, to some tags (`"a || b"`), or by an SQL92 condition.

        A consumer without a group gets the messages that arrive from now on.
        """
        self._run(self._client.subscribe(topic, expression, expression_type=expression_type))

    def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic."""
        self._run(self._client.unsubscribe(topic))

    def assign(self, queues: Iterable[QueueRef], expression: str = SUBSCRIBE_ALL) -> None:
        """Read exactly these queues, whatever other members of the group read. Offsets are committed as usual."""
        self._run(self._client.assign(queues, expression))

    def health(self) -> Health:
        """Return what keeps the client from its work now; no finding while it does it."""
        return self._client.health()

    # -- taking messages ----------------------------------------------------------------------------------------------

    def start(
        self, handler: BlockingMessageHandler, *, workers: int = 20, batch: int | None = None, orderly: bool = False
    ) -> None:
        """Start to pass messages to a function, in threads of their own, and return at once.

        `batch`: the handler gets lists of up to this many messages. `orderly`: the messages of a queue are handled one
        after the other. When the handler raises, the message is delivered again later; `raise RetryLater(level)`
        chooses when, `raise DeadLetter()` gives it up. Without a group a failed message is logged and skipped.

        ```python
        consumer.start(lambda message: print(message.body), workers=4)
        ```
        """
        self._start(
            handler, workers, lambda handled: self._client.start(handled, workers=workers, batch=batch, orderly=orderly)
        )

    def start_batches(
        self, handler: Callable[[PulledBatch], object], *, workers: int = 4, orderly: bool = False
    ) -> None:
        """Start to pass what each pull returns to a function in threads, as a `PulledBatch`, and return at once.

        When the handler raises, every message of the batch is delivered again later. The rest is as in `start`.

        ```python
        consumer.start_batches(lambda batch: print(len(batch), batch.bodies[0]))
        ```
        """
        self._start(
            handler, workers, lambda handled: self._client.start_batches(handled, workers=workers, orderly=orderly)
        )

    def _start(
        self,
        handler: BlockingMessageHandler,
        workers: int,
        start: Callable[[MessageHandler], Coroutine[Any, Any, None]],
    ) -> None:
        require_plain_function(handler, "the handler")
        validate_value("workers", workers, AtLeastOne, "start")
        pool = ThreadPoolExecutor(workers, thread_name_prefix=f"consume {self.group}")

        async def handled(given: Any) -> None:
            await asyncio.get_running_loop().run_in_executor(pool, copy_context().run, _handle, handler, given)

        try:
            self._run(start(handled))
        except BaseException:
            pool.shutdown(wait=False)
            raise
        self._pool = pool

    def poll(self, count_max: int = 32, *, timeout_ms: int = 1_000) -> list[StoredMessage]:
        """Return some messages, or none when the time is up. The messages of earlier polls count as consumed.

        ```python
        while messages := consumer.poll(100, timeout_ms=500):
            save(messages)
        ```
        """
        taken = self._buffer.take(count_max)
        if not taken:
            validate_value("timeout_ms", timeout_ms, NotNegative, "poll")
            self._run(self._fetch(count_max, timeout_ms / 1000))
            taken = self._buffer.take(count_max)
        self._settle_if_due()
        return taken

    def poll_batch(self, *, timeout_ms: int = 1_000) -> PulledBatch | None:
        """Return the messages of one pull, or None when the time is up. Those of earlier polls count as consumed.

        ```python
        while batch := consumer.poll_batch():
            save(batch.keys, batch.bodies)
        ```
        """
        require("numpy", "pyarrow", extra="tables", for_="Consumer.poll_batch")
        taken = self._buffer.take(1)
        if not taken:
            validate_value("timeout_ms", timeout_ms, NotNegative, "poll_batch")
            self._run(self._fetch(1, timeout_ms / 1000, takes_batches=True))
            taken = self._buffer.take(1)
        self._settle_if_due()
        batch: object = taken[0] if taken else None
        if isinstance(batch, StoredMessage):
            raise Refused("this consumer takes messages, and has begun with them: use another for batches")
        return cast(PulledBatch | None, batch)

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> StoredMessage:
        """Return the next message. The one before counts as consumed. Iteration ends when the consumer is closed."""
        taken = self._buffer.take(1)
        while not taken:
            try:
                self._run(self._fetch(self._fetch_count_max, None, in_lanes_max=LANES_FETCH_COUNT_MAX))
            except Closed:
                if self._is_closed:
                    raise StopIteration from None
                raise
            taken = self._buffer.take(1)
        self._settle_if_due()
        return taken[0]

    def commit(self) -> None:
        """Count everything taken so far as consumed, and return when the brokers have stored the offsets."""
        self._buffer.finish()
        self._run(self._commit())

    # -- positions ----------------------------------------------------------------------------------------------------

    @property
    def queues(self) -> list[QueueRef]:
        """The queues that this consumer reads now."""
        return self._call(lambda: self._client.queues)

    def wait_for_assignment(self) -> None:
        """Wait until queues have been assigned for the first time."""
        self._run(self._client.wait_for_assignment())

    def seek(self, queue: QueueRef, offset: int) -> None:
        """Continue a queue from another offset."""
        self._run(self._client.seek(queue, offset))

    def seek_to_time(self, queue: QueueRef, time_ms: int) -> None:
        """Continue a queue from the first message stored at or after a time."""
        self._run(self._client.seek_to_time(queue, time_ms))

    def pause(self, queues: Iterable[QueueRef] | None = None) -> None:
        """Stop pulling from some queues, or from all, until `resume`. Fetched messages are still delivered."""
        self._call(lambda: self._client.pause(queues))

    def resume(self, queues: Iterable[QueueRef] | None = None) -> None:
        """Pull again from paused queues."""
        self._call(lambda: self._client.resume(queues))

    def positions(self, topic: str | None = None) -> dict[QueueRef, int]:
        """Return the offset of each queue up to which messages are consumed."""
        return self._call(lambda: self._client.positions(topic))

    def pull(
        self,
        queue: QueueRef,
        offset: int,
        *,
        count_max: int = 32,
        expression: str = SUBSCRIBE_ALL,
        long_poll_ms: int = 0,
    ) -> PullResult:
        """Pull once from a queue, without affecting the group's offsets."""
        return self._run(
            self._client.pull(queue, offset, count_max=count_max, expression=expression, long_poll_ms=long_poll_ms)
        )

    def resend(
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
        return self._run(
            self._client.resend(
                topic,
                begin=begin,
                end=end,
                queue_id=queue_id,
                priority=priority,
                keys=keys,
                from_ms=from_ms,
                to_ms=to_ms,
            )
        )

    def read_table(
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
        return self._run(
            self._client.read_table(
                topic, start, end, expression=expression, columns=columns, on_undecodable=on_undecodable
            )
        )

    # -- on the loop --------------------------------------------------------------------------------------------------

    def _settle_if_due(self) -> None:
        if self._buffer.is_due and self._loop is not None:
            self._loop.call_soon(self._buffer.settle)

    async def _fetch(
        self,
        count_max: int,
        timeout_s: float | None,
        *,
        in_lanes_max: int | None = None,
        takes_batches: bool = False,
    ) -> None:
        """Fetch into the buffer, not to the caller: its wait may have ended, and the messages must not be lost."""
        self._buffer.settle()
        self._fetching = asyncio.current_task()
        items = await fetch_items(
            self._client, count_max, timeout_s, in_lanes_max=in_lanes_max, takes_batches=takes_batches
        )
        self._buffer.add(items)

    async def _commit(self) -> None:
        self._buffer.settle()
        await self._client.commit()

    async def _stop(self, grace_s: float) -> None:
        if self._fetching is not None and not self._fetching.done():
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
        self._buffer.settle()
        await self._client.close(grace_s)


def _handle(handler: BlockingMessageHandler, given: Any) -> None:
    try:
        returned = handler(given)
        if returned is not None:
            refuse_awaitable(returned, "the handler")
    except Exception as error:
        if isinstance(error, StopIteration):  # a future cannot hold it
            raise RuntimeError("the handler raised StopIteration") from error
        raise
    except BaseException as error:  # it would end the event loop of all clients of the process
        raise RuntimeError(f"the handler raised {error!r}") from error
