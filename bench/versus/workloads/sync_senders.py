"""Threads of the official Java client that send single messages, each waiting for its answer."""

from __future__ import annotations

from bench.versus.java_load import JavaLoad
from bench.versus.peers.peer import Peer
from bench.versus.rounds import Figures
from bench.versus.workload import CPU, P99, RATE

TOPIC = "senders"


def sync_senders(
    load: JavaLoad,
    peer: Peer,
    *,
    senders: int,
    body_bytes: int,
    seconds: float,
    topic: str = TOPIC,
    **more: int,
) -> Figures:
    """Send for some seconds; `more` may limit the `messages`, or spread them over a number of `topics`."""
    before = peer.cpu_s
    order = {"senders": senders, "bytes": body_bytes, "millis": int(seconds * 1000), **more}
    result = load.run("send", peer.address, topic, **order)
    return {
        RATE: result.messages / result.seconds,
        CPU: (peer.cpu_s - before) / result.messages * 1e6,
        P99: result.p99_ms,
    }
