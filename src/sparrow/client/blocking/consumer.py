"""Consumes messages, for programs without an event loop. `sparrow.client.aio.consume.consumer` says what is
promised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparrow.client import aio
from sparrow.client.aio.admin.resend import ResendResult
from sparrow.client.aio.consume.consumer import ConsumeMode
from sparrow.client.aio.consume.pull import PullResult
from sparrow.client.aio.consume.queue_fetcher import Prefetch
from sparrow.client.aio.consume.rebalance import StartPosition
from sparrow.client.allocation import AllocationStrategy, averagely
from sparrow.client.blocking.blocking_client import BlockingClient
from sparrow.client.blocking.fetch_buffer import FetchBuffer
from sparrow.client.priority_lanes import STARVATION_MS
from sparrow.model.errors import Closed
from sparrow.model.message import StoredMessage
from sparrow.model.priority import Priority
from sparrow.model.protocol import EXPRESSION_TAG, SUBSCRIBE_ALL
from sparrow.model.queue import QueueRef
from sparrow.model.token import Credentials

if TYPE_CHECKING:
    import pyarrow as pa

FETCH_COUNT_MAX = 256
"""Messages that iteration brings over from the loop at a time, if there are so many."""
LANES_FETCH_COUNT_MAX = 10
"""The same where there are priorities: what has been brought over is not overtaken any more."""

BlockingMessageHandler = Callable[[Any], object]
"""Takes a message, or a list of them where batches were asked for. Raising means: not now, bring it again."""


class Consumer(BlockingClient[aio.Consumer]):
    """A member of a consumer group; or, with `group=None`, somebody who looks at what comes from now on. One thread at
    a time takes messages from it.

    ```python
    with Consumer("billing") as consumer:
        consumer.subscribe("orders", "paid || shipped")
        for message in consumer:
            print(message.body)
    ```
    """

    def __init__(
        self,
        group: str | None,
        name_servers: str = "127.0.0.1:9876",
        *,
        mode: ConsumeMode = "cluster",
        start: StartPosition = "first",
        strategy: AllocationStrategy = averagely,
        prefetch: Prefetch | None = None,
        commit_interval_ms: int = 5_000,
        offsets_path: Path | str | None = None,
        retries_max: int | None = None,
        starvation_ms: int = STARVATION_MS,
        trace: bool = False,
        timeout_ms: int = 3_000,
        instance: str | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`start` is for queues the group never read. `offsets_path` keeps a broadcast consumer's progress.
        `retries_max`: a message that failed once more often is a dead letter. `starvation_ms`: in a topic with lanes,
        a lower priority gets a share once its first message is so old; 0: never. `trace`: note what handlers do in
        the trace topic."""
        client = aio.Consumer(
            group,
            name_servers,
            mode=mode,
            start=start,
            strategy=strategy,
            prefetch=prefetch,
            commit_interval_ms=commit_interval_ms,
            offsets_path=offsets_path,
            retries_max=retries_max,
            starvation_ms=starvation_ms,
            trace=trace,
            timeout_ms=timeout_ms,
            instance=instance,
            credentials=credentials,
        )
        super().__init__(client, what="the consumer")
        self.group, self.mode = client.group, client.mode
        self._ahead = FetchBuffer()
        self._fetching: asyncio.Task[Any] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def close(self, grace_s: float = 10.0) -> None:
        """Finish what is being handled, commit, say good-bye to the group. Iteration in another thread ends."""
        self._close(self._stop(grace_s))
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def subscribe(self, topic: str, expression: str = SUBSCRIBE_ALL, *, expression_type: str = EXPRESSION_TAG) -> None:
        """Read a topic: all of it, or messages with some tags (`"a || b"`). Without a group: what comes from now on."""
        self._run(self._client.subscribe(topic, expression, expression_type=expression_type))

    def unsubscribe(self, topic: str) -> None:
        self._run(self._client.unsubscribe(topic))

    def assign(self, queues: Iterable[QueueRef], expression: str = SUBSCRIBE_ALL) -> None:
        """Read exactly these queues, whoever else is in the group. Progress is committed as usual."""
        self._run(self._client.assign(queues, expression))

    # -- taking messages ----------------------------------------------------------------------------------------------

    def start(
        self, handler: BlockingMessageHandler, *, workers: int = 20, batch: int | None = None, orderly: bool = False
    ) -> None:
        """Hand messages to a function as they come, in threads of their own; returns at once.

        With `batch` the handler gets lists of up to so many. `orderly`: the messages of a queue one after the other.
        A handler that raises gets the message again later; it may choose when (`raise Later(level)`), or that there
        is no use in it (`raise Bury()`). Without a group, what it did not take is logged and does not come again.

        ```python
        consumer.start(lambda message: print(message.body), workers=4)
        ```
        """
        pool = ThreadPoolExecutor(workers, thread_name_prefix=f"consume {self.group}")

        async def handled(given: Any) -> None:
            await asyncio.get_running_loop().run_in_executor(pool, _handle, handler, given)

        try:
            self._run(self._client.start(handled, workers=workers, batch=batch, orderly=orderly))
        except BaseException:
            pool.shutdown(wait=False)
            raise
        self._pool = pool

    def poll(self, count_max: int = 32, *, timeout_ms: int = 1_000) -> list[StoredMessage]:
        """Some messages, or none when the time is up. Those of the polls before count as dealt with.

        ```python
        while messages := consumer.poll(100, timeout_ms=500):
            save(messages)
        ```
        """
        taken = self._ahead.take(count_max)
        if not taken:
            self._run(self._fetch(count_max, timeout_ms / 1000))
            taken = self._ahead.take(count_max)
        self._settle_if_due()
        return taken

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> StoredMessage:
        """The next message. The one before counts as dealt with. Ends when the consumer is closed."""
        taken = self._ahead.take(1)
        while not taken:
            try:
                self._run(self._fetch(FETCH_COUNT_MAX, None, in_lanes_max=LANES_FETCH_COUNT_MAX))
            except Closed:
                if self._is_closed:
                    raise StopIteration from None
                raise
            taken = self._ahead.take(1)
        self._settle_if_due()
        return taken[0]

    def commit(self) -> None:
        """Everything taken so far is dealt with; the brokers have it when this returns."""
        self._ahead.finish()
        self._run(self._commit())

    # -- positions ----------------------------------------------------------------------------------------------------

    @property
    def queues(self) -> list[QueueRef]:
        """The queues this consumer reads just now."""
        return self._call(lambda: self._client.queues)

    def wait_for_assignment(self) -> None:
        """Returns once the queues have been shared out for the first time."""
        self._run(self._client.wait_for_assignment())

    def seek(self, queue: QueueRef, offset: int) -> None:
        """Go on from another place."""
        self._run(self._client.seek(queue, offset))

    def seek_to_time(self, queue: QueueRef, time_ms: int) -> None:
        self._run(self._client.seek_to_time(queue, time_ms))

    def pause(self, queues: Iterable[QueueRef] | None = None) -> None:
        """Pull no more, until `resume`. What is here already is still delivered."""
        self._call(lambda: self._client.pause(queues))

    def resume(self, queues: Iterable[QueueRef] | None = None) -> None:
        self._call(lambda: self._client.resume(queues))

    def positions(self, topic: str | None = None) -> dict[QueueRef, int]:
        """How far each queue is dealt with."""
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
        """One pull, by hand: no group, no progress."""
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
        """Have messages delivered once more to this group; `Admin.resend` says which. Without one: `GroupRequired`."""
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
    ) -> pa.Table:
        """The messages of a topic as an Arrow table, from a time (or `"first"`) up to another (or `"last"`)."""
        return self._run(self._client.read_table(topic, start, end, expression=expression, columns=columns))

    # -- on the loop --------------------------------------------------------------------------------------------------

    def _settle_if_due(self) -> None:
        if self._ahead.is_due and self._loop is not None:
            self._loop.call_soon(self._ahead.settle)

    async def _fetch(self, count_max: int, timeout_s: float | None, *, in_lanes_max: int | None = None) -> None:
        """Straight into the line ahead: whoever asked may be gone by then, and the messages must not go with him."""
        self._ahead.settle()
        self._fetching = asyncio.current_task()
        self._ahead.add(await self._client.fetch_items(count_max, timeout_s, in_lanes_max=in_lanes_max))

    async def _commit(self) -> None:
        self._ahead.settle()
        await self._client.commit()

    async def _stop(self, grace_s: float) -> None:
        if self._fetching is not None and not self._fetching.done():
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
        self._ahead.settle()
        await self._client.close(grace_s)


def _handle(handler: BlockingMessageHandler, given: Any) -> None:
    try:
        handler(given)
    except Exception as error:
        if isinstance(error, StopIteration):  # a future cannot carry it
            raise RuntimeError("the handler raised StopIteration") from error
        raise
    except BaseException as error:  # would end the loop, and with it every client of the process
        raise RuntimeError(f"the handler raised {error!r}") from error
