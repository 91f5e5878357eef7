"""Apache Kafka 4 as one node that is its own controller (KRaft), with the JVM flags of its own start script."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from bench.versus.peers.peer import Peer
from tests.interop import official
from tests.support.message_brokers import KAFKA_VERSION, kafka_server

JVM_FLAGS = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)


class Kafka(Peer):
    name = "Kafka"
    measured_program = "kafka.Kafka"

    def __init__(self, *, partitions: int = 4) -> None:
        """Create the peer; `partitions` are those of a topic that a client creates by writing to it."""
        super().__init__()
        self._partitions = partitions

    @property
    def description(self) -> str:
        return (
            f"Apache Kafka {KAFKA_VERSION}, KRaft, one node, 1 GiB heap, flags of its start script; it leaves the "
            "flush to the kernel, as Sparrow's async flush does until its next interval"
        )

    @classmethod
    def is_installed(cls) -> bool:
        return any((official.BUILD / f"kafka-{KAFKA_VERSION}").glob("jars-*"))

    def _launch(self, folder: Path, running: ExitStack) -> None:
        server = kafka_server(
            folder, jvm_flags=JVM_FLAGS, auto_create_topics_enable="true", num_partitions=self._partitions
        )
        self.address = running.enter_context(server).address
