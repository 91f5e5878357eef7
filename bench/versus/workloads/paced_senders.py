"""Messages at a fixed rate from the official Java client to its push consumer: the time from send to receipt."""

from __future__ import annotations

from collections.abc import Sequence

from bench.versus.java_load import JavaLoad
from bench.versus.peers.peer import Peer
from bench.versus.rounds import Figures
from bench.versus.workload import CPU, P50, P99, RATE
from bench.versus.workloads.sync_senders import sync_senders

TOPIC = "paced"
BODY_BYTES = 128
GROUP = "paced-consumer"
"""The same in all rounds: it continues at its end. A new group would read the rounds before, from the first offset."""


def carried_rate(load: JavaLoad, peers: Sequence[Peer], *, senders: int, seconds: float) -> float:
    """Return how many messages a second the slowest peer carries from send to receipt.

    It is offered as many as its senders can send without a consumer, which needs CPU time of the same machine.
    """
    rates = []
    for peer in peers:
        offered = sync_senders(load, peer, senders=senders, body_bytes=BODY_BYTES, seconds=seconds)[RATE]
        rates.append(paced_senders(load, peer, senders=senders, rate=int(offered), seconds=seconds)[RATE])
    return min(rates)


def paced_senders(load: JavaLoad, peer: Peer, *, senders: int, rate: int, seconds: float) -> Figures:
    before = peer.cpu_s
    messages = max(senders, int(rate * seconds))
    order = {"senders": senders, "rate": rate, "messages": messages, "bytes": BODY_BYTES, "group": GROUP}
    result = load.run("latency", peer.address, TOPIC, **order)
    return {
        RATE: result.messages / result.seconds,
        P50: result.p50_ms,
        P99: result.p99_ms,
        CPU: (peer.cpu_s - before) / result.messages * 1e6,
    }
