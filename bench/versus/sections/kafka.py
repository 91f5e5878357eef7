"""Sparrow and Apache Kafka 4 from Python: confluent-kafka, which is a C library, and aiokafka."""

from __future__ import annotations

from bench.versus.clients.aiokafka import AiokafkaClient
from bench.versus.clients.client import PythonClient
from bench.versus.clients.confluent import ConfluentClient
from bench.versus.clients.sparrow import SparrowClient
from bench.versus.peers.kafka import Kafka
from bench.versus.peers.peer import PeerMissing
from bench.versus.peers.sparrow import Sparrow
from bench.versus.run import Run
from bench.versus.sections.python_clients import measure_clients
from bench.versus.workload import RATE, Goal

CONFLUENT = ConfluentClient.name
GOALS = {
    "send_each": [Goal(RATE, CONFLUENT, 0.35)],
    "consume_each": [Goal(RATE, CONFLUENT, 0.4)],
    "send_list": [Goal(RATE, CONFLUENT, 0.9)],
    "consume_batches": [Goal(RATE, CONFLUENT, 0.9)],
    "send_table": [Goal(RATE, CONFLUENT, 1.5)],
    "read_table": [Goal(RATE, CONFLUENT, 3)],
}


def compare(run: Run) -> None:
    with run.started(Sparrow(), Kafka()) as peers:
        clients: list[PythonClient] = []
        for peer in peers:
            if isinstance(peer, Sparrow):
                clients.append(SparrowClient(peer))
                continue
            try:
                clients.append(ConfluentClient(peer, is_fetch_allowed=not run.scale.is_smoke))
            except PeerMissing as reason:
                run.report_missing(CONFLUENT, str(reason))
            clients.append(AiokafkaClient(peer))
        measure_clients(run, Kafka.name, clients, GOALS)
