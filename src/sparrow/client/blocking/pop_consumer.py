"""Taking messages for a time, without an event loop. `sparrow.client.aio.consume.pop_consumer` says what is
promised."""

from __future__ import annotations

from collections.abc import Iterable

from sparrow.client import aio
from sparrow.client.aio.consume.pop_consumer import POP_COUNT_MAX, PopReceipt
from sparrow.client.blocking.blocking_client import BlockingClient
from sparrow.model.protocol import EXPRESSION_TAG, SUBSCRIBE_ALL
from sparrow.model.token import Credentials


class PopConsumer(BlockingClient[aio.PopConsumer]):
    """
    ```python
    with PopConsumer("billing") as consumer:
        for receipt in consumer.receive("orders"):
            print(receipt.message.body)
            consumer.ack(receipt)
    ```
    """

    def __init__(
        self,
        group: str,
        name_servers: str = "127.0.0.1:9876",
        *,
        invisible_ms: int = 60_000,
        timeout_ms: int = 3_000,
        credentials: Credentials | None = None,
    ) -> None:
        """`invisible_ms`: how long a message is ours."""
        client = aio.PopConsumer(
            group, name_servers, invisible_ms=invisible_ms, timeout_ms=timeout_ms, credentials=credentials
        )
        super().__init__(client, what="the consumer")
        self.group = client.group

    def receive(
        self,
        topic: str,
        *,
        count_max: int = POP_COUNT_MAX,
        wait_ms: int = 15_000,
        expression: str = SUBSCRIBE_ALL,
        expression_type: str = EXPRESSION_TAG,
        in_order: bool = False,
    ) -> list[PopReceipt]:
        """Some messages, or none when the time is up."""
        return self._run(
            self._client.receive(
                topic,
                count_max=count_max,
                wait_ms=wait_ms,
                expression=expression,
                expression_type=expression_type,
                in_order=in_order,
            )
        )

    def ack(self, receipts: PopReceipt | Iterable[PopReceipt]) -> None:
        """Dealt with."""
        self._run(self._client.ack(receipts))

    def change_invisible_time(self, receipt: PopReceipt, invisible_ms: int) -> PopReceipt:
        """Ours for so much longer, or (0) to come again at once. The old receipt counts no more."""
        return self._run(self._client.change_invisible_time(receipt, invisible_ms))
