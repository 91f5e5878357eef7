"""A backlog that push consumers of several groups, all in one JVM, read at once; each round with new groups.

The clock starts when every group has its first message. What the clients have fetched by then, 1,000 messages of each
queue at most, counts like the rest, at all sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.versus.java_load import JavaLoad
from bench.versus.peers.peer import Peer
from bench.versus.rounds import Figures
from bench.versus.workload import DELIVERIES, DELIVERY_CPU
from bench.versus.workloads.batch_senders import fill
from bench.versus.workloads.push_consumer import new_group

TOPIC = "fan-out"
TIMEOUT_S = 300


def fill_backlogs(load: JavaLoad, peers: Sequence[Peer], messages: int) -> dict[str, int]:
    """Fill the topic of every peer; return how many messages each has."""
    return {peer.name: fill(load, peer, TOPIC, messages) for peer in peers}


def fan_out(load: JavaLoad, peer: Peer, *, groups: int, messages: Mapping[str, int]) -> Figures:
    before = peer.cpu_s
    order = {"group": new_group(), "groups": groups, "messages": messages[peer.name], "timeoutS": TIMEOUT_S}
    result = load.run("consume", peer.address, TOPIC, **order)
    return {
        DELIVERIES: result.messages / result.seconds,
        DELIVERY_CPU: (peer.cpu_s - before) / result.messages * 1e6,
    }
