"""confluent-kafka, Kafka's client of choice in Python: a C library with a thin layer of Python."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from types import ModuleType
from typing import Any

import pyarrow as pa
from bench.versus.clients.client import CONSUME_TIMEOUT_S, LINGER_MS, QUEUES, PythonClient
from bench.versus.packages import import_package
from bench.versus.peers.peer import Peer

FETCH_COUNT = 1_000
"""Messages of one call of `consume`."""


class ConfluentClient(PythonClient):
    name = "Kafka, confluent-kafka"

    def __init__(self, peer: Peer, *, is_fetch_allowed: bool) -> None:
        super().__init__(peer)
        self._library: ModuleType = import_package("confluent_kafka", is_fetch_allowed=is_fetch_allowed)

    @property
    def description(self) -> str:
        return (
            f"{self._library.__version__} with librdkafka {self._library.libversion()[0]}, acks=all, linger "
            f"{LINGER_MS} ms, `consume` of up to {FETCH_COUNT} messages"
        )

    def make_topic(self, topic: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.peer.address})
        for made in admin.create_topics([NewTopic(topic, QUEUES, 1)]).values():
            made.result()

    def send_each(self, topic: str, body: bytes, count: int) -> float:
        return self._produce(topic, zip(repeat(body, count), repeat(None)), count)

    def send_list(self, topic: str, bodies: Sequence[bytes], keys: Sequence[str]) -> float:
        return self._produce(topic, zip(bodies, keys, strict=True), len(bodies))

    def send_table(self, topic: str, table: pa.Table) -> float:
        batches = table.to_batches(max_chunksize=10_000)
        rows = (zip(batch["body"].to_pylist(), batch["keys"].to_pylist(), strict=True) for batch in batches)
        return self._produce(topic, chain.from_iterable(rows), table.num_rows)

    def _produce(self, topic: str, messages: Iterable[tuple[bytes, str | None]], count: int) -> float:
        failures: list[str] = []
        producer = self._producer(on_delivery=lambda error, _: failures.append(str(error)))
        producer.list_topics(topic)  # opens the connection
        produce = producer.produce
        begun = time.perf_counter()
        for body, key in messages:
            while True:
                try:
                    produce(topic, body, key)
                    break
                except BufferError:  # the buffer is full
                    producer.poll(0.01)
        unsent = producer.flush()
        seconds = time.perf_counter() - begun
        assert not unsent, f"{unsent} of {count} messages were not delivered"
        assert not failures, f"{len(failures)} of {count} messages failed, the first with: {failures[0]}"
        return seconds

    def _producer(self, linger_ms: int = LINGER_MS, **more: object) -> Any:
        return self._library.Producer(
            {
                "bootstrap.servers": self.peer.address,
                "linger.ms": linger_ms,
                "queue.buffering.max.messages": 1_000_000,
                "delivery.report.only.error": True,  # no call of Python for each message
                **more,
            }
        )

    def _consumer(self, group: str, start: str = "earliest") -> Any:
        return self._library.Consumer(
            {
                "bootstrap.servers": self.peer.address,
                "group.id": group,
                "auto.offset.reset": start,
                "fetch.wait.max.ms": 500,
            }
        )

    def consume_each(self, topic: str, group: str, count: int) -> float:
        consumer = self._consumer(group)
        consumer.subscribe([topic])
        try:
            begun, seen, deadline = 0.0, 0, time.monotonic() + CONSUME_TIMEOUT_S
            while seen < count:
                message = consumer.poll(1)
                if message is None or message.error():
                    assert time.monotonic() < deadline, f"{seen} of {count} messages in {CONSUME_TIMEOUT_S} s"
                    continue
                begun = begun or time.perf_counter()
                seen += 1 if message.value() else 0
            return time.perf_counter() - begun
        finally:
            consumer.close()

    def consume_batches(self, topic: str, group: str, count: int) -> float:
        return self._consume_batches(
            topic, group, count, lambda messages: sum(1 for message in messages if message.value())
        )

    def read_table(self, topic: str, count: int) -> float:
        columns: tuple[list[int], list[bytes], list[bytes]] = [], [], []

        def take(messages: list[Any]) -> int:
            for message in messages:
                columns[0].append(message.offset())
                columns[1].append(message.key())
                columns[2].append(message.value())
            return len(messages)

        seconds = self._consume_batches(topic, f"table-{time.time_ns()}", count, take)
        begun = time.perf_counter()
        types = (pa.int64(), pa.binary(), pa.binary())
        made = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
        assert pa.table(made, names=["queue_offset", "keys", "body"]).num_rows == count
        return seconds + time.perf_counter() - begun

    def _consume_batches(self, topic: str, group: str, count: int, take: Callable[[list[Any]], int]) -> float:
        consumer = self._consumer(group)
        consumer.subscribe([topic])
        try:
            begun, seen, deadline = 0.0, 0, time.monotonic() + CONSUME_TIMEOUT_S
            while seen < count:
                messages = [each for each in consumer.consume(FETCH_COUNT, 1) if not each.error()]
                assert messages or time.monotonic() < deadline, f"{seen} of {count} messages in {CONSUME_TIMEOUT_S} s"
                if messages:
                    begun = begun or time.perf_counter()
                    seen += take(messages)
            return time.perf_counter() - begun
        finally:
            consumer.close()

    def round_trips(self, topic: str, group: str, count: int) -> list[float]:
        times: list[float] = []
        arrived, ready, stopped = threading.Semaphore(0), threading.Event(), threading.Event()
        consumer = self._consumer(group, "latest")
        consumer.subscribe([topic], on_assign=lambda *_: ready.set())

        def receive() -> None:
            while not stopped.is_set():
                message = consumer.poll(0.1)
                if message is None or message.error():
                    continue
                times.append((time.perf_counter() - float(message.value())) * 1000)
                arrived.release()

        receiver = threading.Thread(target=receive)
        receiver.start()
        try:
            assert ready.wait(CONSUME_TIMEOUT_S), "Kafka assigned no partition"
            producer = self._producer(linger_ms=0)
            # The position at the end is only known after the first fetch, so the first messages may be missed.
            while not arrived.acquire(timeout=0.2):
                self._send_time(producer, topic)
            while arrived.acquire(timeout=0.2):
                pass
            times.clear()
            for _ in range(count):
                self._send_time(producer, topic)
                assert arrived.acquire(timeout=CONSUME_TIMEOUT_S), f"{len(times)} of {count} messages arrived"
            return times
        finally:
            stopped.set()
            receiver.join()
            consumer.close()

    @staticmethod
    def _send_time(producer: Any, topic: str) -> None:
        producer.produce(topic, b"%.9f" % time.perf_counter())
        producer.flush()
