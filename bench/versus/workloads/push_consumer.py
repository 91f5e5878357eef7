"""A push consumer of the official Java client that reads a backlog from the first offset, each round as a new group."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from bench.versus.java_load import JavaLoad
from bench.versus.peers.peer import Peer
from bench.versus.rounds import Figures
from bench.versus.workload import CPU, RATE
from bench.versus.workloads.batch_senders import fill

TOPIC = "backlog"
_numbers = itertools.count(1)


def new_group() -> str:
    return f"readers-{next(_numbers)}"


def backlogs(load: JavaLoad, peers: list[Peer], messages: int) -> dict[str, int]:
    """Fill the topic of every peer; return how many messages each has."""
    return {peer.name: fill(load, peer, TOPIC, messages) for peer in peers}


def push_consumer(load: JavaLoad, peer: Peer, *, messages: Mapping[str, int]) -> Figures:
    before = peer.cpu_s
    result = load.run("consume", peer.address, TOPIC, group=new_group(), messages=messages[peer.name])
    return {RATE: result.messages / result.seconds, CPU: (peer.cpu_s - before) / result.messages * 1e6}
