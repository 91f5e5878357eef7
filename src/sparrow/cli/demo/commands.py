"""`sparrow demo`: start the platform with a producer, two consumers and a Spark pipeline, and show live figures."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table

from sparrow import clock
from sparrow.cli import lifecycle
from sparrow.cli.demo.revenue_pipeline import ORDERS_TOPIC, REVENUE_TOPIC
from sparrow.cli.demo.revenue_windows import RevenueWindows
from sparrow.cli.demo.spark_process import SparkProcess
from sparrow.cli.server.arrow_import import import_arrow_without_pandas
from sparrow.cli.server.console_process import running_console
from sparrow.cli.server.output import print_broker, print_name_server
from sparrow.cli.server.platform import Platform
from sparrow.cli.server.up import DataOption, NameServerPortOption, PortOption
from sparrow.cli.settings import load_settings, usable_folder
from sparrow.client.aio.consume.consumer import Consumer
from sparrow.client.aio.consume.handler_delivery import MessageHandler
from sparrow.client.aio.produce.producer import Producer
from sparrow.model.message import Message, StoredMessage
from sparrow.settings import Settings

BILLING_GROUP = "demo_billing"
CITIES = ("Beijing", "Berlin", "Lagos", "Lima", "Oslo", "Shanghai")
BATCH_ORDERS, BATCH_INTERVAL_S = 20, 0.02
"""A thousand orders a second: enough to see, and cheap enough to leave running."""


def demo(
    data: DataOption = Path("sparrow-data"),
    port: PortOption = None,
    name_server_port: NameServerPortOption = None,
    seconds: Annotated[float, typer.Option(help="Stop after this many seconds; 0: run until Ctrl-C.", min=0)] = 0,
    spark: Annotated[bool, typer.Option(help="Aggregate the orders with Spark, in a separate process.")] = True,
) -> None:
    """Start the platform with a live pipeline: a producer, two consumers of one group, and Spark over the topic.

    Any RocketMQ client can connect to the name server whose address is printed. The console, whose address is printed
    too, shows the orders, the groups, Spark's pipeline and the windows that it writes.

    Example: [bold]sparrow demo --seconds 60[/bold]
    """
    settings = load_settings(port=port, name_server_port=name_server_port)
    usable_folder(data)
    import_arrow_without_pandas()
    lifecycle.run_until_stopped(lambda stop: _serve(settings, data, seconds, stop, with_spark=spark))


async def _serve(settings: Settings, data: Path, seconds: float, stop: asyncio.Event, *, with_spark: bool) -> None:
    async with Platform(data, name_server=settings.name_server, broker=settings.broker, log=settings.log) as platform:
        print_name_server(platform.name_servers)
        print_broker(settings.broker.name, str(platform.address))
        typer.echo(f"Data directory: {data}. Press Ctrl-C to stop.")
        sys.stdout.flush()
        spark = SparkProcess(platform.name_servers, data) if with_spark else None
        async with running_console(settings, platform.name_servers, data):
            await Demo(platform.name_servers, spark).run(seconds, stop)


class Demo:
    """Sends orders, consumes them, and shows the figures."""

    def __init__(self, name_servers: str, spark: SparkProcess | None) -> None:
        self._name_servers, self._spark = name_servers, spark
        self._windows = RevenueWindows()
        self._sent = 0
        self._received: Counter[str] = Counter()
        self._latency_ms = 0.0

    async def run(self, seconds: float, stop: asyncio.Event) -> None:
        """Run until the time is over or `stop` is set."""
        started = time.monotonic()
        first, second = (Consumer(self._name_servers, group=BILLING_GROUP, consume_from="last") for _ in range(2))
        async with Producer(self._name_servers, linger_ms=5) as producer, first, second, AsyncExitStack() as stack:
            await self._send_some(producer)  # creates the topic
            for name, consumer in (("consumer 1", first), ("consumer 2", second)):
                await consumer.subscribe(ORDERS_TOPIC)
                await consumer.start(self._handler(name))
            if self._spark is not None:
                await self._read_back(await stack.enter_async_context(Consumer(self._name_servers, group=None)))
                await stack.enter_async_context(self._spark)
            sending = asyncio.create_task(self._keep_sending(producer))
            with Live(refresh_per_second=4) as live:
                while not stop.is_set() and (not seconds or time.monotonic() - started < seconds):
                    await asyncio.sleep(0.1)
                    live.update(self._shown(time.monotonic() - started, _share_of(first), _share_of(second)))
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                await producer.flush()
                live.update(self._shown(time.monotonic() - started, _share_of(first), _share_of(second)))

    async def _read_back(self, consumer: Consumer) -> None:
        await consumer.subscribe(REVENUE_TOPIC)
        await consumer.start(self._windows.handle, orderly=True)

    async def _keep_sending(self, producer: Producer) -> None:
        while True:
            await self._send_some(producer)
            await asyncio.sleep(BATCH_INTERVAL_S)

    async def _send_some(self, producer: Producer) -> None:
        orders = [self._order() for _ in range(BATCH_ORDERS)]
        await asyncio.gather(*map(producer.send_soon, orders))
        self._sent += len(orders)

    def _order(self) -> Message:
        body = json.dumps({"cents": random.randrange(100, 100_000)})
        return Message(ORDERS_TOPIC, body, tags=random.choice(CITIES), keys=f"order-{random.randrange(1_000_000)}")

    def _handler(self, name: str) -> MessageHandler:
        async def handle(message: StoredMessage) -> None:
            self._received[name] += 1
            self._latency_ms += 0.05 * (clock.now_ms() - message.born_ms - self._latency_ms)

        return handle

    def _shown(self, elapsed_s: float, *queues: int) -> Group:
        received = sum(self._received.values())
        title = f"{self._sent:,} orders sent, {received:,} received, {received / elapsed_s:,.0f} per second"
        flow = Table(title=title, min_width=len(title))
        flow.add_column("consumer")
        flow.add_column("queues", justify="right")
        flow.add_column("orders", justify="right")
        for (name, count), share in zip(sorted(self._received.items()), queues, strict=False):
            flow.add_row(name, str(share), f"{count:,}")
        flow.caption = f"latency from send to handler: {self._latency_ms:.1f} ms"
        if self._spark is None:
            return Group(flow)
        return Group(flow, "", self._windows.shown(self._spark.status, elapsed_s))


def _share_of(consumer: Consumer) -> int:
    return sum(queue.topic == ORDERS_TOPIC for queue in consumer.queues)
