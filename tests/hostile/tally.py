"""What an attack sent, and how the servers reacted."""

from __future__ import annotations

import msgspec


class Tally(msgspec.Struct):
    """Counts of one attack. Every request must be answered, refused, or end with its connection."""

    connections: int = 0
    requests: int = 0
    answered: int = 0
    refused: int = 0
    """Requests that got an error code."""
    closed: int = 0
    """Requests without a response whose connection the server closed."""
    abandoned: int = 0
    """Requests whose response the attacker did not wait for."""
    connections_refused: int = 0
    """Connections that the server closed before it answered any request."""

    @property
    def unanswered(self) -> int:
        return self.requests - self.answered - self.refused - self.closed - self.abandoned
