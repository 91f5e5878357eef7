"""The work loads of RocketMQ's official Java client. None does anything before it is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from bench.versus.java_load import Headers, JavaLoad
from bench.versus.peers.peer import Peer
from bench.versus.peers.rocketmq import RocketMQ
from bench.versus.peers.sparrow import Sparrow
from bench.versus.rounds import Figures, Work
from bench.versus.run import Run
from bench.versus.workload import CPU, MEMORY_LOADED, P99, RATE, Goal, Workload
from bench.versus.workloads import batch_senders as batch
from bench.versus.workloads import fan_out, footprint, large_backlog, large_senders, paced_senders, push_consumer
from bench.versus.workloads import many_topics as topic_senders
from bench.versus.workloads.quorum_senders import quorum_senders
from bench.versus.workloads.sync_senders import TOPIC as SENDER_TOPIC
from bench.versus.workloads.sync_senders import sync_senders

NAME = RocketMQ.name
MANY = 64
HEADERS: dict[Headers, str] = {"JSON": "JSON headers", "ROCKETMQ": "binary headers"}
BODIES = {"128 B": 128, "1 KB": 1024}
TOPICS = (SENDER_TOPIC, batch.TOPIC, push_consumer.TOPIC, fan_out.TOPIC, paced_senders.TOPIC, large_senders.TOPIC)
"""Of all work loads but those that create their own."""
LOADS_PERCENT = (10, 50, 90)
FAN_OUT_PART = 2
"""One in so many messages of a round: ten groups receive each."""
LONG_ROUNDS = 3
"""Rounds of work loads that start a server in each."""

Loads = Mapping[Headers, JavaLoad]


def senders(run: Run, loads: Loads, peers: Sequence[Peer]) -> list[Workload]:
    made = []
    for count in (1, MANY):
        for headers, load in loads.items():
            for size, body_bytes in BODIES.items():
                work = partial(sync_senders, load, senders=count, body_bytes=body_bytes, seconds=run.scale.seconds)
                name = f"{count} sync sender{'s' if count > 1 else ''}, {size}, {HEADERS[headers]}"
                goals = [Goal(RATE, NAME, 1.2), Goal(CPU, NAME, 0.6)] if count == MANY else []
                made.append(Workload(name, _sides(peers, work), goals))
    return made


def large_bodies(run: Run, loads: Loads, peers: Sequence[Peer]) -> list[Workload]:
    work = partial(large_senders.large_senders, loads["JSON"], senders=MANY, seconds=run.scale.seconds)
    return [Workload(f"{MANY} sync senders, 64 KB, {HEADERS['JSON']}", _sides(peers, work))]


def many_topics(run: Run, loads: Loads, peers: Sequence[Peer]) -> list[Workload]:
    count = 50 if run.scale.is_smoke else 1_000
    work = partial(topic_senders.many_topics, loads["JSON"], senders=MANY, topics=count, seconds=run.scale.seconds)
    name = f"{MANY} sync senders to {count:,} topics, 128 B, {HEADERS['JSON']}"
    return [Workload(name, _sides(peers, work), prepare=partial(topic_senders.create, peers, count))]


def batches(run: Run, loads: Loads, peers: Sequence[Peer]) -> list[Workload]:
    work = partial(batch.batch_senders, loads["JSON"], seconds=run.scale.seconds)
    name = f"batches of {batch.BATCH} × {batch.BODY_BYTES} B, {batch.SENDERS} senders"
    return [Workload(name, _sides(peers, work), [Goal(RATE, NAME, 1.3), Goal(CPU, NAME, 0.6)])]


def push_consumers(run: Run, loads: Loads, peers: Sequence[Peer]) -> list[Workload]:
    backlogs = cache(partial(push_consumer.backlogs, loads["JSON"], peers, run.scale.messages))

    def work(peer: Peer) -> Figures:
        return push_consumer.push_consumer(loads["JSON"], peer, messages=backlogs())

    name = f"push consumer from the first offset, {run.scale.messages:,} messages"
    goals = [Goal(RATE, NAME, 1.2), Goal(CPU, NAME, 0.5)]
    return [Workload(name, _sides(peers, work), goals, prepare=backlogs)]


def fan_outs(run: Run, loads: Loads, peers: Sequence[Peer]) -> list[Workload]:
    groups = 3 if run.scale.is_smoke else 10  # a consumer needs seconds to end
    count = run.scale.messages // FAN_OUT_PART
    backlogs = cache(partial(fan_out.fill_backlogs, loads["JSON"], peers, count))

    def work(peer: Peer) -> Figures:
        return fan_out.fan_out(loads["JSON"], peer, groups=groups, messages=backlogs())

    name = f"fan-out to {groups} groups of push consumers, {count:,} messages"
    return [Workload(name, _sides(peers, work), prepare=backlogs)]


def latencies(run: Run, loads: Loads, peers: Sequence[Peer]) -> list[Workload]:
    """Give every side the same load: a part of what the slower side carries."""
    seconds = run.scale.seconds
    measure = partial(paced_senders.carried_rate, loads["JSON"], peers, senders=MANY, seconds=seconds)
    maximum = cache(measure)  # one for all parts

    def work(peer: Peer, *, percent: int) -> Figures:
        rate = max(1, int(maximum() * percent / 100))
        return paced_senders.paced_senders(loads["JSON"], peer, senders=MANY, rate=rate, seconds=seconds)

    return [
        Workload(
            f"send to receive at {percent} % of the slower side's maximum, 128 B",
            _sides(peers, partial(work, percent=percent)),
            [Goal(P99, NAME, 1.0)] if percent == 50 else [],
            prepare=maximum,
        )
        for percent in ((50,) if run.scale.is_smoke else LOADS_PERCENT)
    ]


def sync_flush(run: Run, loads: Loads, peers: Sequence[Peer]) -> list[Workload]:
    made = []
    for headers, load in loads.items():
        work = partial(sync_senders, load, senders=MANY, body_bytes=128, seconds=run.scale.seconds)
        name = f"{MANY} sync senders, 128 B, {HEADERS[headers]}, sync flush"
        made.append(Workload(name, _sides(peers, work), [Goal(RATE, NAME, 1.2), Goal(CPU, NAME, 0.8)]))
    return made


def quorum(run: Run, loads: Loads, peers: Sequence[Peer]) -> list[Workload]:
    work = partial(quorum_senders, loads["JSON"], senders=MANY, seconds=run.scale.seconds)
    return [Workload(f"{MANY} sync senders, 128 B, {HEADERS['JSON']}, quorum of 3", _sides(peers, work))]


def footprints(run: Run, load: JavaLoad, kinds: Sequence[type[Sparrow] | type[RocketMQ]]) -> Workload:
    sides = {kind.name: partial(footprint.footprint, run, load, kind) for kind in kinds}
    name = f"start-up, and memory before and after {run.scale.messages * 5:,} messages"
    return Workload(name, sides, [Goal(MEMORY_LOADED, NAME, 0.25)], rounds_max=LONG_ROUNDS)


def large_backlogs(run: Run, loads: Loads, peers: Sequence[Peer]) -> list[Workload]:
    """Use servers that run: for a small backlog."""
    work = partial(large_backlog.large_backlog, loads["JSON"], backlog_bytes=_backlog_bytes(run))
    return [_large_backlog(run, _sides(peers, work))]


def separate_large_backlogs(run: Run, load: JavaLoad, kinds: Sequence[type[Sparrow] | type[RocketMQ]]) -> Workload:
    """Start a server for each backlog: two of them would compete for the page cache, and fill the disk."""
    work = partial(large_backlog.separate_large_backlog, run, load, backlog_bytes=_backlog_bytes(run))
    return _large_backlog(run, {kind.name: partial(work, kind) for kind in kinds})


def _backlog_bytes(run: Run) -> int:
    return 4_000_000 if run.scale.is_smoke else 10_000_000_000


def _large_backlog(run: Run, sides: Mapping[str, Work]) -> Workload:
    size = _backlog_bytes(run)
    text = f"{size // 10**9} GB" if size >= 10**9 else f"{size // 10**6} MB"
    return Workload(f"push consumer from the first offset, {text} of 64 KB messages", sides, rounds_max=LONG_ROUNDS)


def _sides(peers: Sequence[Peer], work: Callable[..., Figures]) -> dict[str, Work]:
    return {peer.name: partial(work, peer) for peer in peers}
