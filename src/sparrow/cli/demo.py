"""`sparrow demo`: the platform with a live pipeline. Orders are sent, two consumers share them, Arrow sums them up."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table

from sparrow import clock
from sparrow.cli import running
from sparrow.cli.platform import Platform
from sparrow.cli.up import Data, NamingPort, PortOption, say_broker, say_naming, settings_of
from sparrow.client.aio.consumer import Consumer
from sparrow.client.aio.delivery import Handler
from sparrow.client.aio.producer import Producer
from sparrow.model.message import Message, StoredMessage
from sparrow.settings import Settings

TOPIC, GROUP = "demo_orders", "demo_billing"
CITIES = ("Beijing", "Berlin", "Lagos", "Lima", "Oslo", "Shanghai")
ORDERS_A_TURN, TURN_S = 20, 0.02
"""A thousand orders a second: enough to see, little enough to leave running."""
SUM_UP_S = 1.0


def run(
    data: Data = Path("sparrow-data"),
    port: PortOption = None,
    name_server_port: NamingPort = None,
    seconds: Annotated[float, typer.Option(help="Stop after so long; 0 goes on until Ctrl-C.", min=0)] = 0,
) -> None:
    """Start the platform with a live pipeline: a producer, two consumers of one group, and Arrow over the topic.

    Any RocketMQ client can join in meanwhile: the name server is where it says.

    Example: [bold]sparrow demo --seconds 10[/bold]
    """
    settings = settings_of(port=port, name_server_port=name_server_port)
    running.run(lambda stop: _serve(settings, data, seconds, stop))


async def _serve(settings: Settings, data: Path, seconds: float, stop: asyncio.Event) -> None:
    async with Platform(data, naming=settings.naming, broker=settings.broker, log=settings.log) as platform:
        say_naming(platform.name_servers)
        say_broker(settings.broker.name, str(platform.address))
        typer.echo(f"data in {data}; Ctrl-C stops it")
        await Pipeline(platform.name_servers).run(seconds, stop)


class Pipeline:
    """Orders in, orders out, and what is seen of them."""

    def __init__(self, name_servers: str) -> None:
        self._name_servers = name_servers
        self._sent = 0
        self._received: Counter[str] = Counter()
        self._latency_ms = 0.0
        self._revenue = pa.table({"tags": pa.array([], pa.string()), "cents": pa.array([], pa.int64())})

    async def run(self, seconds: float, stop: asyncio.Event) -> None:
        begun = time.monotonic()
        first, second = (Consumer(GROUP, self._name_servers, start="last") for _ in range(2))
        async with Producer(self._name_servers, linger_ms=5) as producer, first, second:
            await self._send_some(producer)  # makes the topic
            for name, consumer in (("consumer 1", first), ("consumer 2", second)):
                await consumer.subscribe(TOPIC)
                await consumer.start(self._handler(name))
            sending = asyncio.create_task(self._keep_sending(producer))
            summing = asyncio.create_task(self._keep_summing(first))
            with Live(refresh_per_second=4) as live:
                while not stop.is_set() and (not seconds or time.monotonic() - begun < seconds):
                    await asyncio.sleep(0.1)
                    live.update(self._shown(time.monotonic() - begun, _share_of(first), _share_of(second)))
            for task in (sending, summing):
                task.cancel()
            await asyncio.gather(sending, summing, return_exceptions=True)
            await producer.flush()

    async def _keep_sending(self, producer: Producer) -> None:
        while True:
            await self._send_some(producer)
            await asyncio.sleep(TURN_S)

    async def _send_some(self, producer: Producer) -> None:
        orders = [self._order() for _ in range(ORDERS_A_TURN)]
        await asyncio.gather(*map(producer.send_soon, orders))
        self._sent += len(orders)

    def _order(self) -> Message:
        body = json.dumps({"cents": random.randrange(100, 100_000)})
        return Message.of(TOPIC, body, tags=random.choice(CITIES), keys=f"order-{random.randrange(1_000_000)}")

    def _handler(self, name: str) -> Handler:
        async def handle(message: StoredMessage) -> None:
            self._received[name] += 1
            self._latency_ms += 0.05 * (clock.now_ms() - message.born_ms - self._latency_ms)

        return handle

    async def _keep_summing(self, consumer: Consumer) -> None:
        """What the last seconds brought, read back as columns."""
        while True:
            await asyncio.sleep(SUM_UP_S)
            table = await consumer.read_table(TOPIC, clock.now_ms() - 5_000, columns=["tags", "body"])
            digits = pc.replace_substring_regex(table["body"].cast(pa.string()), r"\D", "")
            table = pa.table({"tags": table["tags"], "cents": digits.cast(pa.int64())})
            self._revenue = table.group_by("tags").aggregate([("cents", "sum"), ("cents", "count")]).sort_by("tags")

    def _shown(self, elapsed_s: float, *queues: int) -> Group:
        received = sum(self._received.values())
        flow = Table(title=f"{self._sent:,} orders sent, {received:,} received, {received / elapsed_s:,.0f} a second")
        flow.add_column("consumer")
        flow.add_column("queues", justify="right")
        flow.add_column("orders", justify="right")
        for (name, count), share in zip(sorted(self._received.items()), queues, strict=False):
            flow.add_row(name, str(share), f"{count:,}")
        flow.caption = f"from send to handler: {self._latency_ms:.1f} ms"
        money = Table(title="the last five seconds, as Arrow")
        money.add_column("city (tag)")
        money.add_column("orders", justify="right")
        money.add_column("euros", justify="right")
        for row in self._revenue.to_pylist():
            if "cents_sum" in row:
                money.add_row(row["tags"], f"{row['cents_count']:,}", f"{row['cents_sum'] / 100:,.2f}")
        return Group(flow, money)


def _share_of(consumer: Consumer) -> int:
    return sum(queue.topic == TOPIC for queue in consumer.queues)
