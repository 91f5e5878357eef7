"""Threads of the official Java client that send single messages to a replica set, all of whose replicas are in sync."""

from __future__ import annotations

from bench.versus.java_load import JavaLoad
from bench.versus.peers.peer import Peer
from bench.versus.peers.replica_set import ReplicaSet
from bench.versus.rounds import Figures
from bench.versus.workloads.sync_senders import sync_senders

BODY_BYTES = 128


def quorum_senders(load: JavaLoad, peer: Peer, *, senders: int, seconds: float) -> Figures:
    """Fail if a replica left the in-sync set: sends do not wait for it, and would cost less than at the other side."""
    assert isinstance(peer, ReplicaSet)
    figures = sync_senders(load, peer, senders=senders, body_bytes=BODY_BYTES, seconds=seconds)
    assert peer.in_sync_count == peer.replicas, f"{peer.in_sync_count} of {peer.replicas} replicas are in sync"
    return figures
