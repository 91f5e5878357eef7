"""The time from a send to its receipt, one message at a time on idle servers, producer and consumer in one process."""

from __future__ import annotations

from bench.versus.clients.client import PythonClient
from bench.versus.rounds import Figures
from bench.versus.workload import P50, P99
from bench.versus.workloads.python_consume import new_group


def latency(client: PythonClient, topic: str, count: int) -> Figures:
    times = sorted(client.round_trips(topic, new_group(), count))
    return {P50: times[len(times) // 2], P99: times[int(len(times) * 0.99)]}
