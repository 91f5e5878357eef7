"""The work loads of Python clients, for any set of clients; each peer's own section chooses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bench.versus.clients.client import PythonClient
from bench.versus.rounds import Figures
from bench.versus.run import Run
from bench.versus.workload import Goal, Workload
from bench.versus.workloads.python_consume import consume_batches, consume_each, fill, read_table
from bench.versus.workloads.python_latency import latency
from bench.versus.workloads.python_send import BODY, send_each, send_list, send_table

SEND_TOPIC, BACKLOG_TOPIC, LATENCY_TOPIC = "sent", "backlog", "latency"
LATENCY_PART = 200
"""One in so many messages of a round: a round trip takes a hundred times as long as a message of a batch."""
LATENCY_MIN = 20
SENDS: dict[str, tuple[str, Callable[..., Figures]]] = {
    "send_each": ("async sends with linger", send_each),
    "send_list": ("a list of bodies and keys", send_list),
    "send_table": ("send an Arrow table", send_table),
}
READS: dict[str, tuple[str, Callable[..., Figures]]] = {
    "consume_each": ("consume one by one", consume_each),
    "consume_batches": ("consume in batches", consume_batches),
    "read_table": ("read an Arrow table", read_table),
}

Goals = Mapping[str, Sequence[Goal]]
"""By the name of the job."""


def measure_clients(
    run: Run, peer: str, clients: Sequence[PythonClient], goals: Goals | None = None, *, divisor: int = 1
) -> None:
    """Measure every job that Sparrow's client shares with another one; `divisor` is for slow peers."""
    goals = goals or {}
    count = run.scale.messages // divisor
    topics = {}
    for number, client in enumerate(clients):  # two clients may share a server
        run.describe(f"{client.name} (client)", client.description)
        topics[client] = {topic: f"{topic}-{number}" for topic in (SEND_TOPIC, BACKLOG_TOPIC, LATENCY_TOPIC)}
        client.make_topic(topics[client][SEND_TOPIC])
        client.make_topic(topics[client][LATENCY_TOPIC])
        fill(client, topics[client][BACKLOG_TOPIC], count)

    def measure(job: str, title: str, work: Callable[..., Figures], topic: str, count: int) -> None:
        offering = [client for client in clients if client.offers(job)]
        if len(offering) < min(2, len(clients)):
            return  # nothing to compare; Sparrow alone is measured if every peer is missing
        sides = {client.name: partial(work, client, topics[client][topic], count) for client in offering}
        run.measure(peer, Workload(title, sides, goals.get(job, ())))

    for jobs, topic in ((SENDS, SEND_TOPIC), (READS, BACKLOG_TOPIC)):
        for job, (name, work) in jobs.items():
            measure(job, f"{name}, {count:,} × {len(BODY)} B", work, topic, count)
    trips = max(LATENCY_MIN, run.scale.messages // LATENCY_PART)
    measure("round_trips", f"send to receive, one at a time, {trips:,} messages", latency, LATENCY_TOPIC, trips)
