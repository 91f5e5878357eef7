"""Outages: the caller may try again, perhaps at another broker."""

from __future__ import annotations

from sparrow.model.errors.base import SparrowError


class Unavailable(SparrowError):
    """The request cannot be served now, or not by this broker. Another attempt may succeed."""


class NotLeader(Unavailable):
    """Only the leader among the brokers of one name does this. Ask the name server for the route, and try there."""


class Busy(Unavailable):
    """A limit of concurrent work is reached. Try again later."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"busy, try again: {self.why}"


class ConnectionLost(Unavailable):
    """A connection could not be opened, or was closed before the response."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(address, why)
        self.address, self.why = address, why

    def __str__(self) -> str:
        return f"no connection to {self.address}: {self.why}"


class NoNameServer(ConnectionLost):
    """None of the name servers can be reached; `address` has all of them."""

    def __str__(self) -> str:
        return (
            f"no name server can be reached at {self.address}: {self.why}; start one with `sparrow up`, or check the "
            "address and the firewall"
        )


class RequestTimeout(Unavailable):
    """No response arrived in time. The request may still have been carried out."""

    def __init__(
        self,
        address: str,
        what: str,
        timeout_ms: int,
        remedy: str = "check that a name server or broker listens there and is not overloaded, or allow more time",
    ) -> None:
        super().__init__(address, what, timeout_ms, remedy)
        self.address, self.what, self.timeout_ms, self.remedy = address, what, timeout_ms, remedy

    def __str__(self) -> str:
        return f"{self.address} did not respond to {self.what} within {self.timeout_ms} ms; {self.remedy}"


class NoMaster(Unavailable):
    """The topic has queues, but no master broker that accepts messages for them."""


class FlushTimeout(Unavailable):
    """The message is written, and not known to be on disk in time."""

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return f"the message is written, but not flushed to disk within {self.timeout_ms} ms"


class ReplicationTimeout(Unavailable):
    """The message is written by the leader, and not known to be replicated in time: it may survive or be lost."""

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return f"the message is written, but not replicated as the policy demands within {self.timeout_ms} ms"


class NoFollower(Unavailable):
    """The message is written, and no follower is there to have it, too."""


class NotEnoughReplicas(Unavailable):
    """Too few replicas are in sync, and nothing is written."""

    def __init__(self, in_sync: int, needed: int) -> None:
        super().__init__(in_sync, needed)
        self.in_sync, self.needed = in_sync, needed

    def __str__(self) -> str:
        return f"too few replicas are in sync ({self.in_sync} of {self.needed}): start the others, and send again"


class Closed(Unavailable):
    """The client or the server is closed."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what, remedy)
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        return f"{self.what} is closed: {self.remedy}" if self.remedy else f"{self.what} is closed"
