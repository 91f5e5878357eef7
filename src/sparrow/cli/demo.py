"""`sparrow demo`: orders flow into a topic and are read back as Arrow columns, live."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.live import Live
from rich.table import Table

from sparrow import clock
from sparrow.model import Queue, Topic
from sparrow.store.log import LogStore
from sparrow.store.spi import Slice
from sparrow.wire import columns

TOPIC = Topic(name="demo_orders", read_queues=4, write_queues=4)
CITIES = ("Beijing", "Berlin", "Lagos", "Lima", "Oslo", "Shanghai")
ORDERS_A_BATCH = 2_000


def run(
    directory: Annotated[Path, typer.Option(help="Where the store is kept.")] = Path("sparrow-data"),
    seconds: Annotated[float, typer.Option(help="Stop after so long; 0 goes on until Ctrl-C.", min=0)] = 0,
) -> None:
    """Write made-up orders into a log store and read them back as Arrow, with a live table.

    Example: [bold]sparrow demo --seconds 10[/bold]
    """
    typer.echo(f"store: {directory.resolve()}   (Ctrl-C stops it)")
    with LogStore(directory) as store:
        try:
            asyncio.run(_flow(store, seconds))
        except KeyboardInterrupt:
            typer.echo("\nstopping: everything written goes to disk")


async def _flow(store: LogStore, seconds: float) -> None:
    await store.put_topic(TOPIC)
    queues = [Queue(TOPIC.name, number) for number in range(TOPIC.write_queues)]
    position = {queue: (await store.bounds(queue)).end for queue in queues}
    read: Counter[str] = Counter()
    random = np.random.default_rng()
    started, batches = time.monotonic(), 0
    with Live(refresh_per_second=4) as live:
        while not seconds or time.monotonic() - started < seconds:
            queue = queues[batches % len(queues)]
            encoded = _orders(random)
            await store.append_encoded(queue, encoded.data, encoded.sizes, verify_crc=False)
            batches += 1
            found = await store.read(queue, position[queue], count_max=2 * ORDERS_A_BATCH, bytes_max=8 << 20)
            if isinstance(found, Slice):
                position[queue] = found.next_offset
                batch = columns.decode(found.tobytes(), sizes=found.sizes, columns=["tags", "body"])
                for city in pc.value_counts(batch.column("tags")):
                    read[city["values"].as_py()] += city["counts"].as_py()
            live.update(_table(store, read, time.monotonic() - started))
            await asyncio.sleep(0.02)


def _orders(random: np.random.Generator) -> columns.Encoded:
    cents = random.integers(100, 100_000, ORDERS_A_BATCH)
    numbers = random.integers(0, 1_000_000, ORDERS_A_BATCH)
    bodies = pc.binary_join_element_wise('{"cents":', pa.array(cents).cast(pa.string()), "}", "").cast(pa.binary())
    return columns.encode(
        bodies,
        topic=TOPIC.name,
        tags=pa.array(CITIES).take(pa.array(random.integers(0, len(CITIES), ORDERS_A_BATCH))),
        keys=pc.binary_join_element_wise("order-", pa.array(numbers).cast(pa.string()), ""),
        born_ms=clock.now_ms(),
    )


def _table(store: LogStore, read: Counter[str], elapsed: float) -> Table:
    total = sum(read.values())
    table = Table(
        title=f"{total:,} orders read back as Arrow, {total / max(elapsed, 0.001):,.0f} a second", min_width=64
    )
    table.add_column("city (tag)")
    table.add_column("orders", justify="right")
    for city, count in sorted(read.items()):
        table.add_row(city, f"{count:,}")
    table.caption = f"log: {store.written / 1e6:,.1f} MB written, {store.watermark('durable') / 1e6:,.1f} MB durable"
    return table
