"""Background tasks: the event bus and procrastinate on one PostgreSQL, Celery on a Redis that syncs every write."""

from __future__ import annotations

from functools import partial

from bench.versus.clients.task_queues import BusQueue, CeleryQueue, ProcrastinateQueue, TaskQueue
from bench.versus.peers.peer import Peer, PeerMissing
from bench.versus.peers.postgresql import PostgreSQL
from bench.versus.peers.redis import Redis
from bench.versus.peers.sparrow import Sparrow
from bench.versus.rounds import Figures
from bench.versus.run import Run
from bench.versus.workload import ENQUEUED, HANDLED, Workload

NAME = "task queues"
DIVISOR = 200
"""A task has a commit of its own, and takes so many times as long as a message, roughly."""


def compare(run: Run) -> None:
    with run.started(Sparrow("sync"), PostgreSQL(), Redis("sync")) as peers:
        queues = _queues(run, {type(peer): peer for peer in peers})
        for queue in queues:
            run.describe(f"{queue.name} (tasks)", queue.description)
        count = max(20, run.scale.messages // DIVISOR)
        sides = {queue.name: partial(_measure, queue, count) for queue in queues}
        run.measure(NAME, Workload(f"{count:,} tasks enqueued one by one, then handled", sides))


def _queues(run: Run, peers: dict[type[Peer], Peer]) -> list[TaskQueue]:
    is_fetch_allowed = not run.scale.is_smoke
    makers = {
        BusQueue.name: lambda: BusQueue(peers[PostgreSQL], peers[Sparrow]),
        ProcrastinateQueue.name: lambda: ProcrastinateQueue(peers[PostgreSQL], is_fetch_allowed=is_fetch_allowed),
        CeleryQueue.name: lambda: CeleryQueue(peers[Redis], is_fetch_allowed=is_fetch_allowed),
    }
    queues: list[TaskQueue] = []
    for name, make in makers.items():
        try:
            queues.append(make())
        except KeyError as server:
            run.report_missing(name, f"it needs {server.args[0].name}, which is missing")
        except PeerMissing as reason:
            run.report_missing(name, str(reason))
    return queues


def _measure(queue: TaskQueue, count: int) -> Figures:
    enqueue_s, handle_s = queue.run(count)
    return {ENQUEUED: count / enqueue_s, HANDLED: count / handle_s}
