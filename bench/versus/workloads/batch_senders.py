"""Threads of the official Java client that send lists of messages."""

from __future__ import annotations

from bench.versus.java_load import JavaLoad, LoadResult
from bench.versus.peers.peer import Peer
from bench.versus.rounds import Figures
from bench.versus.workload import CPU, RATE

SENDERS = 4
BATCH = 100
BODY_BYTES = 100
TOPIC = "batches"


def batch_senders(load: JavaLoad, peer: Peer, *, seconds: float) -> Figures:
    before = peer.cpu_s
    result = _send(load, peer, TOPIC, millis=int(seconds * 1000))
    return {RATE: result.messages / result.seconds, CPU: (peer.cpu_s - before) / result.messages * 1e6}


def fill(load: JavaLoad, peer: Peer, topic: str, messages: int) -> int:
    """Send at least so many messages; return how many there are."""
    return _send(load, peer, topic, messages=messages).messages


def _send(load: JavaLoad, peer: Peer, topic: str, **until: int) -> LoadResult:
    return load.run("batches", peer.address, topic, senders=SENDERS, batch=BATCH, bytes=BODY_BYTES, **until)
