"""Apache Kafka transport, with the layout of .NET CAP, so that services of both kinds share topics and groups.

    name       topic, created if missing with the cluster's default partitions and replicas
    group      consumer group, from the earliest record on
    headers    record headers, UTF-8 or null
    key        the event's key, or its header cap-kafka-key, or its id
    body       the record's value

1. An envelope counts as sent when all in-sync replicas have it. Events with the same key share a partition and keep
   their order there.
2. The committed offset of a partition never passes a record that is not acknowledged.
3. After a rebalance, unacknowledged records are delivered again; acknowledging them here has no effect then.
4. aiokafka waits forever for lost servers: every call here has a timeout, and a silent server is checked.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from sparrow.bus.codec import headers as h
from sparrow.bus.names import is_pattern
from sparrow.bus.transports.kafka.clients import stop_admin, stop_producer, translated_errors
from sparrow.bus.transports.kafka.consumer import KafkaGroupConsumer
from sparrow.bus.transports.spi import Envelope, HeaderBuilder
from sparrow.model.errors import IllegalName, Unavailable, UnknownTopic

TOPIC_CHARS_MAX = 249
BATCH_BYTES_MAX = 128 << 10
CLUSTER_DEFAULT = -1
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


class KafkaTransport:
    def __init__(
        self,
        servers: str,
        *,
        allow_auto_create: bool = True,
        partitions: int = CLUSTER_DEFAULT,
        replicas: int = CLUSTER_DEFAULT,
        header_builder: HeaderBuilder | None = None,
        request_timeout_s: float = 10,
        session_timeout_s: float = 10,
        metadata_max_age_s: float = 30,
        liveness_interval_s: float = 5,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a transport; `servers` is `kafka://host:port` or `host:port`, several separated by commas.

        A consumer that receives nothing for `liveness_interval_s` checks whether the server still answers.
        `client_options` are passed to every client of the library, for example security_protocol, ssl_context and
        sasl_*.
        """
        self.address = servers.removeprefix("kafka://").rstrip("/")
        self._allow_auto_create, self._partitions, self._replicas = allow_auto_create, partitions, replicas
        self._build = header_builder
        self._timeout_s, self._session_timeout_s = request_timeout_s, session_timeout_s
        self._new_topics_every_s, self._silence_s = metadata_max_age_s, liveness_interval_s
        self._options = {
            **(client_options or {}),
            "bootstrap_servers": self.address.split(","),
            "request_timeout_ms": int(request_timeout_s * 1000),
        }
        self._producer: AIOKafkaProducer | None = None
        self._opening = asyncio.Lock()
        self._known: set[str] = set()
        """Topics that exist."""

    def check_name(self, name: str) -> None:
        if not _LEGAL.fullmatch(name) or len(name) > TOPIC_CHARS_MAX or name in (".", ".."):
            rule = f"a topic of Kafka has at most {TOPIC_CHARS_MAX} characters of a-z A-Z 0-9 . _ -"
            raise IllegalName("event", name, rule)

    async def open(self) -> None:
        await self._started()

    async def send(self, envelopes: Sequence[Envelope]) -> Sequence[Exception | None]:
        deadline = time.monotonic() + self._timeout_s
        producer = await self._started()
        refused = await self._make_topics({envelope.name for envelope in envelopes})
        # Sent one after the other, so that records of a partition keep their order; awaited together.
        handed_over = [
            refused.get(envelope.name) or await self._hand_over(producer, envelope, deadline) for envelope in envelopes
        ]
        pending = {future for future in handed_over if isinstance(future, asyncio.Future)}
        if pending:
            await asyncio.wait(pending, timeout=max(0, deadline - time.monotonic()))
        results = [self._result(*pair) for pair in zip(envelopes, handed_over, strict=True)]
        if any(isinstance(result, Unavailable) for result in results):
            # It would retry forever. A new producer sends again what may have arrived; receivers drop it by id.
            await self._abandon(producer)
        return results

    async def listen(self, group: str, names: Sequence[str], *, prefetch: int) -> KafkaGroupConsumer:
        for refusal in (await self._make_topics({name for name in names if not is_pattern(name)})).values():
            if not isinstance(refusal, UnknownTopic):  # a topic that appears later is read then
                raise refusal
        consumer = AIOKafkaConsumer(
            **self._options,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            # The first assignor of .NET's client: a group may have members of both kinds. Only one, because aiokafka
            # 0.14 joins once per assignor, and two members would push each other out of the group.
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=int(self._session_timeout_s * 1000),
            heartbeat_interval_ms=int(self._session_timeout_s * 1000 / 3),
            metadata_max_age_ms=int(self._new_topics_every_s * 1000),
        )
        listening = KafkaGroupConsumer(
            consumer,
            address=self.address,
            build=self._build,
            prefetch=prefetch,
            liveness_interval_s=self._silence_s,
            timeout_s=self._timeout_s,
        )
        try:
            with translated_errors(self.address, "a connection", self._timeout_s):
                async with asyncio.timeout(self._timeout_s):
                    await consumer.start()
            listening.begin(names)
        except BaseException:
            await listening.close()
            raise
        return listening

    async def close(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await stop_producer(producer, keep_trying=True)

    async def _started(self) -> AIOKafkaProducer:
        async with self._opening:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    **self._options, acks="all", enable_idempotence=True, max_batch_size=BATCH_BYTES_MAX
                )
                try:
                    with translated_errors(self.address, "a connection", self._timeout_s):
                        async with asyncio.timeout(self._timeout_s):
                            await producer.start()
                except BaseException:
                    await stop_producer(producer, keep_trying=False)
                    raise
                self._producer = producer
            return self._producer

    async def _hand_over(
        self, producer: AIOKafkaProducer, envelope: Envelope, deadline: float
    ) -> asyncio.Future[Any] | Exception:
        key = envelope.key or envelope.headers.get(h.KAFKA_KEY) or envelope.id
        headers = [(name, None if value is None else value.encode()) for name, value in envelope.headers.items()]
        try:
            with translated_errors(self.address, f"event {envelope.name!r}", self._timeout_s, topic=envelope.name):
                async with asyncio.timeout(max(0, deadline - time.monotonic())):
                    future: asyncio.Future[Any] = await producer.send(
                        envelope.name, envelope.body, key=key.encode(), headers=headers
                    )
                    return future
        except Exception as error:
            return error

    def _result(self, envelope: Envelope, outcome: asyncio.Future[Any] | Exception) -> Exception | None:
        if isinstance(outcome, Exception):
            return outcome
        try:
            with translated_errors(self.address, f"event {envelope.name!r}", self._timeout_s, topic=envelope.name):
                if not outcome.done():
                    outcome.cancel()  # the record may still be sent
                    raise TimeoutError
                outcome.result()
        except Exception as error:
            if isinstance(error, UnknownTopic):  # the topic was deleted
                self._known.discard(envelope.name)
            return error
        return None

    async def _abandon(self, producer: AIOKafkaProducer) -> None:
        if self._producer is producer:
            self._producer = None
        await stop_producer(producer, keep_trying=False)

    async def _make_topics(self, names: Collection[str]) -> dict[str, Exception]:
        """Create the missing topics; return the refused ones with their errors."""
        missing = set(names) - self._known
        if not missing:
            return {}
        admin = AIOKafkaAdminClient(**self._options)
        try:
            with translated_errors(self.address, "the topics", self._timeout_s):
                async with asyncio.timeout(self._timeout_s):
                    await admin.start()
                    missing -= set(await admin.list_topics())
                    new = [self._new_topic(name) for name in missing if self._allow_auto_create]
                    answer = await admin.create_topics(new) if new else None
        finally:
            await stop_admin(admin)
        outcomes = {} if answer is None else {topic: (code, why) for topic, code, why in answer.topic_errors}
        refused: dict[str, Exception] = {name: UnknownTopic(name) for name in missing - outcomes.keys()}
        for name, (code, why) in outcomes.items():
            if code in (0, errors.TopicAlreadyExistsError.errno):
                continue
            try:
                with translated_errors(self.address, f"topic {name!r}", self._timeout_s, topic=name):
                    raise errors.for_code(code)(why or name)
            except Exception as error:
                refused[name] = error
        self._known |= set(names) - refused.keys()
        return refused

    def _new_topic(self, name: str) -> NewTopic:
        by_default = CLUSTER_DEFAULT in (self._partitions, self._replicas)
        # The library takes -1 for a manual replica assignment.
        return NewTopic(name, self._partitions, self._replicas, replica_assignments={} if by_default else None)
