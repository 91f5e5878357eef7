"""The methods of a producer that send many messages at once: the rows of a table, or lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparrow.client.aio.connection.session_client import SessionClient
from sparrow.client.aio.produce.bulk.bulk_sender import BulkSender
from sparrow.client.aio.produce.memory_budget import MemoryBudget
from sparrow.client.aio.produce.message_encoder import MessageEncoder
from sparrow.client.aio.produce.sender import Sender
from sparrow.extras import require
from sparrow.model.errors import Closed, Refused
from sparrow.model.queue import QueueRef
from sparrow.model.send_result import BulkSendResult


class BulkProducer(SessionClient):
    """A producer of many messages at once. Its subclass opens it."""

    timeout_ms: int
    _sender: Sender
    _encoder: MessageEncoder
    _budget: MemoryBudget
    _is_open: bool
    _is_idempotent: bool

    async def send_table(
        self,
        topic: str,
        table: Any,
        *,
        body: str = "body",
        keys: str | None = "keys",
        tags: str | None = "tags",
        properties: str | None = "properties",
        queue: QueueRef | None = None,
        in_flight: int = 4,
        timeout_ms: int | None = None,
    ) -> int:
        """Send every row of an Arrow table, a record batch or a pandas frame as a message; return how many.

        The arguments name columns; only `body` must exist. Batches go to the queues in turn, `in_flight` at a time, so
        rows keep their order only within a batch; with a `queue` they keep it throughout. Rows get no unique id.
        Raises `PartialSend` when a batch fails.
        """
        require("numpy", "pyarrow", extra="tables", for_="Producer.send_table")
        from sparrow.client.aio.produce.bulk.table_rows import encode_table, message_columns

        sender = self._bulk_sender(topic, in_flight, timeout_ms)
        columns = message_columns(table, body=body, keys=keys, tags=tags, properties=properties)
        return (await sender.send(encode_table(columns, queue), len(columns.body))).count

    async def send_many(
        self,
        topic: str,
        bodies: Iterable[bytes | str],
        *,
        keys: Iterable[str | None] | None = None,
        tags: Iterable[str | None] | str | None = None,
        properties: Iterable[Mapping[str, str] | None] | Mapping[str, str] | None = None,
        sharding_keys: Iterable[str | None] | None = None,
        queue: QueueRef | None = None,
        in_flight: int = 4,
        timeout_ms: int | None = None,
    ) -> BulkSendResult:
        """Send a list of bodies, each as a message, in large batches; return where they are stored.

        The other lists have one item for each body; a single tag or mapping of properties is that of every message.
        Batches go to the queues in turn, `in_flight` at a time, so messages keep their order only within a batch. With
        a `queue` they keep it throughout, and with `sharding_keys` those of one key do. Messages get no unique id.
        Raises `PartialSend` when a batch fails.
        """
        require("numpy", "pyarrow", extra="tables", for_="Producer.send_many")
        from sparrow.client.aio.produce.bulk.list_rows import MessageLists

        sender = self._bulk_sender(topic, in_flight, timeout_ms)
        lists = MessageLists(
            bodies,
            keys=keys,
            tags=tags,
            properties=properties,
            sharding_keys=sharding_keys,
            body_bytes_max=self._encoder.message_bytes_max,
        )
        queues: Sequence[QueueRef] | None = None if queue is None else (queue,)
        if queues is None and lists.has_sharding_keys:
            queues = (await self._sender.route_within(topic, timeout_ms or self.timeout_ms)).write_queues
        return await sender.send(lists.encode(queues), len(lists))

    def _bulk_sender(self, topic: str, in_flight: int, timeout_ms: int | None) -> BulkSender:
        self._check_open()
        self._check_batches_allowed()
        timeout_ms = timeout_ms or self.timeout_ms
        return BulkSender(self._sender, self._budget, topic, in_flight=in_flight, timeout_ms=timeout_ms)

    def _check_open(self) -> None:
        if not self._is_open:
            raise Closed("the producer", "use `async with`, or call open before the first send")

    def _check_batches_allowed(self) -> None:
        if self._is_idempotent:
            raise Refused("an idempotent producer sends no batches: use another producer for them")
