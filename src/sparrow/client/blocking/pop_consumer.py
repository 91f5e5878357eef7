"""The blocking pop consumer. `sparrow.client.aio.consume.pop_consumer` documents its guarantees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from sparrow.client import aio
from sparrow.client.aio.consume.pop_consumer import POP_COUNT_MAX, PopReceipt
from sparrow.client.blocking.blocking_client import BlockingClient
from sparrow.client.options import PopConsumerOptions
from sparrow.model.health import Health
from sparrow.model.protocol import EXPRESSION_TAG, SUBSCRIBE_ALL


class PopConsumer(BlockingClient[aio.PopConsumer]):
    """A consumer that receives messages for an invisible time and acknowledges each.

    ```python
    with PopConsumer(group="billing") as consumer:
        for receipt in consumer.receive("orders"):
            print(receipt.message.body)
            consumer.ack(receipt)
    ```
    """

    def __init__(self, name_servers: str | None = None, *, group: str, **options: Unpack[PopConsumerOptions]) -> None:
        """Create a consumer; `PopConsumerOptions` describes the options."""
        client = aio.PopConsumer(name_servers, group=group, **options)
        super().__init__(client, what="the consumer")
        self.group = client.group

    def health(self) -> Health:
        """Return what keeps the client from its work now; no finding while it does it."""
        return self._client.health()

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
        """Receive some messages, or none when the time is up.

        `in_order`: a queue delivers no further message until the received ones are acknowledged.
        """
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
        """Acknowledge messages; raise for those whose invisible time is over."""
        self._run(self._client.ack(receipts))

    def change_invisible_time(self, receipt: PopReceipt, invisible_ms: int) -> PopReceipt:
        """Set how long a message stays invisible from now on; 0 makes it visible at once.

        Return the receipt that replaces the old one.
        """
        return self._run(self._client.change_invisible_time(receipt, invisible_ms))
