"""A Python client of a peer: the same few jobs, each written as the client's own documentation advises.

A job returns the seconds that it took, without the time of connecting. A client that has no way to do a job leaves the
method out, and takes no part in that work load.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa
from bench.versus.peers.peer import Peer

LINGER_MS = 2
"""How long a producer may collect messages before it sends them."""
QUEUES = 4
CONSUME_TIMEOUT_S = 120.0


class PythonClient(ABC):
    name: ClassVar[str]
    """The name of the side in the report."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    @property
    def description(self) -> str:
        """Version and settings of the client, for the report."""
        return "its defaults"

    @abstractmethod
    def make_topic(self, topic: str) -> None:
        """Create a topic with `QUEUES` queues, or what the peer has instead."""

    @abstractmethod
    def send_each(self, topic: str, body: bytes, count: int) -> float:
        """Send one message at a time; the client collects them into batches. All are acknowledged in the end."""

    def send_list(self, topic: str, bodies: Sequence[bytes], keys: Sequence[str]) -> float:
        """Send a list of bodies with their keys."""
        raise NotImplementedError

    def send_table(self, topic: str, table: pa.Table) -> float:
        """Send the rows of an Arrow table with the columns `body` and `keys`."""
        raise NotImplementedError

    def consume_each(self, topic: str, group: str, count: int) -> float:
        """Consume a topic from its start, one message at a time; the time starts with the first message."""
        raise NotImplementedError

    def consume_batches(self, topic: str, group: str, count: int) -> float:
        """Consume a topic from its start in batches of messages; the time starts with the first batch."""
        raise NotImplementedError

    def read_table(self, topic: str, count: int) -> float:
        """Read a topic from its start as an Arrow table of offset, key and body."""
        raise NotImplementedError

    def round_trips(self, topic: str, group: str, count: int) -> list[float]:
        """Return the milliseconds from the call that sends to the call of the receiver, one message at a time."""
        raise NotImplementedError

    def offers(self, job: str) -> bool:
        return getattr(type(self), job) is not getattr(PythonClient, job)
