"""Threads of the official Java client that send single messages to many topics in turn."""

from __future__ import annotations

from collections.abc import Sequence

from bench.versus.java_load import JavaLoad
from bench.versus.peers.peer import Peer
from bench.versus.rounds import Figures
from bench.versus.topics import make_topics
from bench.versus.workloads.sync_senders import sync_senders

TOPIC = "many"
QUEUES = 4
BODY_BYTES = 128
CREATION_TIMEOUT_S = 300


def create(peers: Sequence[Peer], topics: int) -> None:
    """Create the topics at every peer, within a limit of time."""
    for peer in peers:
        names = (f"{TOPIC}-{number}" for number in range(topics))
        make_topics(peer.address, *names, queues=QUEUES, timeout_s=CREATION_TIMEOUT_S)


def many_topics(load: JavaLoad, peer: Peer, *, senders: int, topics: int, seconds: float) -> Figures:
    order = {"senders": senders, "body_bytes": BODY_BYTES, "topics": topics}
    return sync_senders(load, peer, topic=TOPIC, seconds=seconds, **order)
