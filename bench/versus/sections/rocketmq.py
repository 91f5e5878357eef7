"""Sparrow and Apache RocketMQ 5.5, both driven by RocketMQ's official Java client in the same JVM."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from bench.versus.java_load import CLIENT_VERSION, HEAP_MB, Headers, JavaLoad, java_load
from bench.versus.peers.peer import PeerMissing
from bench.versus.peers.rocketmq import RocketMQ
from bench.versus.peers.sparrow import Sparrow
from bench.versus.rounds import Figures
from bench.versus.run import Run, say
from bench.versus.topics import make_topics
from bench.versus.workload import CPU, MEMORY_LOADED, P99, RATE, Goal, Workload
from bench.versus.workloads.batch_senders import BATCH, BODY_BYTES, SENDERS, batch_senders
from bench.versus.workloads.batch_senders import TOPIC as BATCH_TOPIC
from bench.versus.workloads.footprint import ROUNDS as FOOTPRINT_ROUNDS
from bench.versus.workloads.footprint import footprint
from bench.versus.workloads.paced_senders import TOPIC as PACED_TOPIC
from bench.versus.workloads.paced_senders import paced_senders
from bench.versus.workloads.push_consumer import TOPIC as BACKLOG_TOPIC
from bench.versus.workloads.push_consumer import backlogs, push_consumer
from bench.versus.workloads.sync_senders import TOPIC as SENDER_TOPIC
from bench.versus.workloads.sync_senders import sync_senders

NAME = RocketMQ.name
MANY = 64
QUEUES = 8
HEADERS: dict[Headers, str] = {"JSON": "JSON headers", "ROCKETMQ": "binary headers"}
BODIES = {"128 B": 128, "1 KB": 1024}

Loads = dict[Headers, JavaLoad]


def compare(run: Run) -> None:
    with ExitStack() as stack:
        try:
            loads: Loads = {headers: stack.enter_context(java_load(run.new_folder(), headers)) for headers in HEADERS}
        except PeerMissing as reason:
            run.report_missing("RocketMQ's Java client", str(reason))
            return
        description = f"{CLIENT_VERSION}, {HEAP_MB} MiB heap; the same JVM is the client of both servers"
        run.describe("RocketMQ's Java client", description)
        with run.started(Sparrow(), RocketMQ()) as peers:
            _make_topics(peers)
            _warm_up(run, loads, peers)
            for workload in _senders(run, loads, peers):
                run.measure(NAME, workload)
            run.measure(NAME, _batches(run, loads["JSON"], peers))
            run.measure(NAME, _push_consumer(run, loads["JSON"], peers))
            run.measure(NAME, _half_load(run, loads["JSON"], peers))
        with run.started(Sparrow("sync"), RocketMQ("sync")) as peers:
            _make_topics(peers)
            for headers, load in loads.items():
                run.measure(NAME, _sync_flush(run, headers, load, peers))
        kinds = [type(peer) for peer in peers]
        scale = run.scale._replace(rounds=min(FOOTPRINT_ROUNDS, run.scale.rounds), warm_ups=0)
        sides = {kind.name: partial(footprint, run, loads["JSON"], kind) for kind in kinds}
        name = f"start-up, and memory before and after {run.scale.messages * 5:,} messages"
        run.measure(NAME, Workload(name, sides, [Goal(MEMORY_LOADED, NAME, 0.25)]), scale)


def _make_topics(peers: list[Sparrow | RocketMQ]) -> None:
    for peer in peers:
        make_topics(peer.address, SENDER_TOPIC, BATCH_TOPIC, BACKLOG_TOPIC, PACED_TOPIC, queues=QUEUES)


def _warm_up(run: Run, loads: Loads, peers: list[Sparrow | RocketMQ]) -> None:
    """Let the JVMs of client and broker compile what the work loads use."""
    if not run.scale.warm_up_s:
        return
    say(f"warming up for {run.scale.warm_up_s * len(loads) * len(peers):.0f} s")
    for load in loads.values():
        for peer in peers:
            sync_senders(load, peer, senders=MANY, body_bytes=128, seconds=run.scale.warm_up_s)


def _senders(run: Run, loads: Loads, peers: list[Sparrow | RocketMQ]) -> list[Workload]:
    made = []
    for senders in (1, MANY):
        for headers, load in loads.items():
            for size, body_bytes in BODIES.items():
                work = partial(sync_senders, load, senders=senders, body_bytes=body_bytes, seconds=run.scale.seconds)
                name = f"{senders} sync sender{'s' if senders > 1 else ''}, {size}, {HEADERS[headers]}"
                goals = [Goal(RATE, NAME, 1.2), Goal(CPU, NAME, 0.6)] if senders == MANY else []
                made.append(Workload(name, _sides(peers, work), goals))
    return made


def _batches(run: Run, load: JavaLoad, peers: list[Sparrow | RocketMQ]) -> Workload:
    work = partial(batch_senders, load, seconds=run.scale.seconds)
    name = f"batches of {BATCH} × {BODY_BYTES} B, {SENDERS} senders"
    return Workload(name, _sides(peers, work), [Goal(RATE, NAME, 1.3), Goal(CPU, NAME, 0.6)])


def _push_consumer(run: Run, load: JavaLoad, peers: list[Sparrow | RocketMQ]) -> Workload:
    messages = backlogs(load, peers, run.scale.messages)
    work = partial(push_consumer, load, messages=messages)
    name = f"push consumer from the first offset, {run.scale.messages:,} messages"
    return Workload(name, _sides(peers, work), [Goal(RATE, NAME, 1.2), Goal(CPU, NAME, 0.5)])


def _half_load(run: Run, load: JavaLoad, peers: list[Sparrow | RocketMQ]) -> Workload:
    """Give every side the same load: half of what the slower side carried with many senders."""
    work = partial(sync_senders, load, senders=MANY, body_bytes=128, seconds=run.scale.seconds)
    rate = max(1, int(min(work(peer)[RATE] for peer in peers) / 2))
    paced = partial(paced_senders, load, senders=MANY, rate=rate, seconds=run.scale.seconds)
    name = f"send to receive at half load, {rate:,} messages/s, 128 B"
    return Workload(name, _sides(peers, paced), [Goal(P99, NAME, 1.0)])


def _sync_flush(run: Run, headers: Headers, load: JavaLoad, peers: list[Sparrow | RocketMQ]) -> Workload:
    work = partial(sync_senders, load, senders=MANY, body_bytes=128, seconds=run.scale.seconds)
    name = f"{MANY} sync senders, 128 B, {HEADERS[headers]}, sync flush"
    return Workload(name, _sides(peers, work), [Goal(RATE, NAME, 1.2), Goal(CPU, NAME, 0.8)])


def _sides(peers: list[Sparrow | RocketMQ], work: Callable[..., Figures]) -> dict[str, Callable[[], Figures]]:
    return {peer.name: partial(work, peer) for peer in peers}
