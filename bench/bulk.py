"""Lists and whole pulls from Python: `send_many` and `poll_batch` against tables, and against confluent-kafka on Kafka.

Bodies of 100 bytes with a key, in four queues or partitions; every send is acknowledged, and every body and key is read
as a Python object. Each figure is the best of several rounds in which the competitors take turns; the CPU time is that
of this process, without the servers. Without Java, Kafka's jars or the package confluent-kafka, only Sparrow is
measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pytest

from _harness import ROOT, Row, folder_on_disk, is_smoke, report
from broker import broker
from sparrow import Admin, Consumer, Producer

sys.path.append(str(ROOT))
from tests.support.message_brokers import kafka_server

COUNT = 5_000 if is_smoke() else 500_000
ROUNDS = 1 if is_smoke() else 3
BODIES = [b"%0100d" % number for number in range(COUNT)]
KEYS = [f"order-{number}" for number in range(COUNT)]
TIMEOUT_MS = 60_000
LISTS, TABLES, KAFKA = "send_many", "send_table", "confluent-kafka"


class Best:
    """The best rate and the lowest CPU time of each kind of work."""

    def __init__(self) -> None:
        self.rate: dict[str, float] = {}
        self.cpu_us: dict[str, float] = {}

    def measure(self, name: str, work: Callable[..., int], *args: str) -> None:
        begun, cpu = time.perf_counter(), time.process_time()
        count = work(*args)
        assert count == COUNT, f"{name}: {count} of {COUNT} messages"
        self.rate[name] = max(self.rate.get(name, 0.0), count / (time.perf_counter() - begun))
        self.cpu_us[name] = min(self.cpu_us.get(name, 1e9), (time.process_time() - cpu) / count * 1e6)

    def rows(self) -> Iterator[Row]:
        for name, rate in self.rate.items():
            yield Row(name, rate, "messages/s")
            yield Row(f"{name}: CPU of the client", self.cpu_us[name], "µs/message")

    def ratio(self, name: str, peer: str, goal: float | None = None) -> Iterator[Row]:
        if peer in self.rate:
            yield Row(f"{name} / {peer}", self.rate[name] / self.rate[peer], "x", None if is_smoke() else goal)


# -- Sparrow ----------------------------------------------------------------------------------------------------------


def send_lists(name_servers: str, topic: str) -> int:
    with Producer(name_servers, timeout_ms=TIMEOUT_MS) as producer:
        return producer.send_many(topic, BODIES, keys=KEYS).count


def send_table(name_servers: str, topic: str) -> int:
    table = pa.table({"body": pa.array(BODIES, pa.binary()), "keys": KEYS})
    with Producer(name_servers, timeout_ms=TIMEOUT_MS) as producer:
        return producer.send_table(topic, table)


def take_batches(name_servers: str, topic: str, group: str) -> int:
    seen = 0
    with Consumer(name_servers, group=group) as consumer:
        consumer.subscribe(topic)
        while seen < COUNT:
            batch = consumer.poll_batch(timeout_ms=TIMEOUT_MS)
            assert batch is not None
            seen += len(batch.bodies)
            assert len(batch.keys) == len(batch)
        consumer.commit()
    return seen


def take_messages(name_servers: str, topic: str, group: str) -> int:
    seen = 0
    with Consumer(name_servers, group=group) as consumer:
        consumer.subscribe(topic)
        for message in consumer:
            seen += len(message.keys)
            if seen == COUNT:
                break
        consumer.commit()
    return seen


# -- Kafka ------------------------------------------------------------------------------------------------------------


@contextmanager
def kafka_if_there() -> Iterator[str | None]:
    """Yield the address of a Kafka server; None without one."""
    if find_spec("confluent_kafka") is None:
        print("confluent-kafka is not installed: only Sparrow is measured")
        yield None
        return
    with folder_on_disk() as folder:
        try:
            server = kafka_server(folder, num_partitions=4, auto_create_topics_enable="true")
            kafka = server.__enter__()
        except pytest.skip.Exception as missing:
            print(f"{missing}: only Sparrow is measured")
            yield None
            return
        try:
            yield kafka.address
        finally:
            server.__exit__(None, None, None)


def send_to_kafka(address: str, topic: str) -> int:
    import confluent_kafka

    failed: list[Any] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "linger.ms": 5, "queue.buffering.max.messages": 2 * COUNT, "acks": "all"}
    )

    def acknowledged(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    for number, body in enumerate(BODIES):
        producer.produce(topic, body, KEYS[number], on_delivery=acknowledged)
        if not number % 1000:
            producer.poll(0)
    producer.flush()
    return COUNT - len(failed)


def take_from_kafka(address: str, topic: str, group: str) -> int:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    seen = 0
    while seen < COUNT:
        some = consumer.consume(8192, 1.0)
        seen += len([(message.value(), message.key()) for message in some])
    consumer.close()
    return seen


def main() -> None:
    sends, takes = Best(), Best()
    with folder_on_disk() as folder, broker(folder) as (_, _, name_servers), kafka_if_there() as kafka:
        with Admin(name_servers) as admin:
            for number in range(ROUNDS):
                for name in (LISTS, TABLES):
                    admin.create_topic(f"{name}-{number}", queues=4)
        for number in range(ROUNDS):
            sends.measure(LISTS, send_lists, name_servers, f"{LISTS}-{number}")
            sends.measure(TABLES, send_table, name_servers, f"{TABLES}-{number}")
            if kafka is not None:
                sends.measure(KAFKA, send_to_kafka, kafka, f"lists-{number}")
        for number in range(ROUNDS):
            topic, group = f"{LISTS}-{number}", f"bench-{number}"
            takes.measure("poll_batch", take_batches, name_servers, topic, group)
            takes.measure("iteration", take_messages, name_servers, topic, f"{group}-one-by-one")
            if kafka is not None:
                takes.measure("consume of confluent-kafka", take_from_kafka, kafka, f"lists-{number}", group)
    rows = [
        *sends.rows(),
        *sends.ratio(LISTS, TABLES),
        *sends.ratio(LISTS, KAFKA, 0.9),
        *takes.rows(),
        *takes.ratio("poll_batch", "iteration"),
        *takes.ratio("poll_batch", "consume of confluent-kafka", 0.9),
    ]
    report("bulk", rows)


if __name__ == "__main__":
    main()
