"""A set of brokers that replicate: its replicas are measured together, and it says how many are in sync."""

from __future__ import annotations

from abc import abstractmethod

from bench.versus.peers.peer import Peer


class ReplicaSet(Peer):
    replicas = 3

    @property
    def title(self) -> str:
        return f"{self.name}, {self.replicas} replicas"

    @property
    @abstractmethod
    def in_sync_count(self) -> int:
        """How many replicas a send waits for now."""
