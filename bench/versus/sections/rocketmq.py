"""Sparrow and Apache RocketMQ 5.5, both driven by RocketMQ's official Java client in the same JVM.

Work loads that would disturb others, by gigabytes on the disk or a thousand topics, have a pair of servers of their
own. A pair is started only if one of its work loads is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bench.versus.java_load import CLIENT_VERSION, HEAP_MB, java_load
from bench.versus.peers.peer import Peer, PeerMissing
from bench.versus.peers.rocketmq import RocketMQ
from bench.versus.peers.rocketmq_set import RocketMQSet
from bench.versus.peers.sparrow import Sparrow
from bench.versus.peers.sparrow_set import SparrowSet
from bench.versus.run import Run, say
from bench.versus.sections import java_workloads as java
from bench.versus.topics import make_topics
from bench.versus.workload import Workload
from bench.versus.workloads.sync_senders import sync_senders

NAME = RocketMQ.name
QUEUES = 8
TOGETHER = (java.senders, java.batches, java.push_consumers, java.fan_outs, java.latencies)
APART = (java.large_bodies, java.many_topics)

Make = Callable[[Run, java.Loads, Sequence[Peer]], list[Workload]]
"""Describes work loads for servers, which need not run yet."""


def compare(run: Run) -> None:
    with ExitStack() as stack:
        try:
            loads = {headers: stack.enter_context(java_load(run.new_folder(), headers)) for headers in java.HEADERS}
        except PeerMissing as reason:
            run.report_missing("RocketMQ's Java client", str(reason))
            return
        description = f"{CLIENT_VERSION}, {HEAP_MB} MiB heap; the same JVM is the client of both servers"
        run.describe("RocketMQ's Java client", description)
        json: java.Loads = {"JSON": loads["JSON"]}
        if run.scale.is_smoke:  # the start of a server takes longer than its work
            _measure(run, loads, [Sparrow(), RocketMQ()], *TOGETHER, *APART, java.large_backlogs)
        else:
            _measure(run, loads, [Sparrow(), RocketMQ()], *TOGETHER)
            for make in APART:
                _measure(run, json, [Sparrow(), RocketMQ()], make)
        _measure(run, loads, [Sparrow("sync"), RocketMQ("sync")], java.sync_flush)
        _measure(run, json, _replica_sets(run), java.quorum)
        kinds = [kind for kind in (Sparrow, RocketMQ) if kind.name not in run.missing]
        run.measure(NAME, java.footprints(run, loads["JSON"], kinds))
        if not run.scale.is_smoke:
            run.measure(NAME, java.separate_large_backlogs(run, loads["JSON"], kinds))


def _replica_sets(run: Run) -> list[Peer]:
    if not run.scale.is_smoke:
        return [SparrowSet(), RocketMQSet()]
    run.report_missing(RocketMQSet().title, "four JVMs start too slowly for a smoke run")
    return [SparrowSet()]


def _measure(run: Run, loads: java.Loads, servers: Sequence[Peer], *makers: Make) -> None:
    """Start servers and measure work loads at them, unless none of these is wanted."""
    wanted = [each.name for make in makers for each in make(run, loads, servers) if run.wants(each)]
    if wanted:  # the other pairs are measured if one of these does not start
        run.attempt(f"{NAME}: servers for {wanted[0]}", lambda: _start_and_measure(run, loads, servers, *makers))


def _start_and_measure(run: Run, loads: java.Loads, servers: Sequence[Peer], *makers: Make) -> None:
    with run.started(*servers) as peers, ExitStack() as connected:
        for peer in peers:
            make_topics(peer.address, *java.TOPICS, queues=QUEUES)
            for load in loads.values():
                connected.callback(load.disconnect, peer.address)
        _warm_up(run, loads, peers)
        for make in makers:
            for workload in make(run, loads, peers):
                run.measure(NAME, workload)


def _warm_up(run: Run, loads: java.Loads, peers: Sequence[Peer]) -> None:
    """Let the JVMs of client and broker compile what the work loads use."""
    if not run.scale.warm_up_s:
        return
    say(f"warming up for {run.scale.warm_up_s * len(loads) * len(peers):.0f} s")
    for load in loads.values():
        for peer in peers:
            sync_senders(load, peer, senders=java.MANY, body_bytes=128, seconds=run.scale.warm_up_s)
