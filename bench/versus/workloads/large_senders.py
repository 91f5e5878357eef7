"""Threads of the official Java client that send single messages of 64 KB, up to a limit of bytes on the disk."""

from __future__ import annotations

from bench.versus.java_load import JavaLoad
from bench.versus.peers.peer import Peer
from bench.versus.rounds import Figures
from bench.versus.workload import BYTES, RATE
from bench.versus.workloads.sync_senders import sync_senders

TOPIC = "large"
BODY_BYTES = 64 << 10
ROUND_BYTES_MAX = 1 << 30
"""Six rounds of two sides write 12 GiB at most."""


def large_senders(load: JavaLoad, peer: Peer, *, senders: int, seconds: float) -> Figures:
    messages = ROUND_BYTES_MAX // BODY_BYTES
    order = {"senders": senders, "body_bytes": BODY_BYTES, "messages": messages}
    figures = sync_senders(load, peer, topic=TOPIC, seconds=seconds, **order)
    return {RATE: figures[RATE], BYTES: figures[RATE] * BODY_BYTES / 1e6, **figures}
