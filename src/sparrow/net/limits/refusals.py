"""What the peers of a listener were refused, counted by cause. Requests that are accepted cost nothing here."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, get_args

from sparrow.model.errors import SparrowError
from sparrow.net.access.audit_log import AccessRefused, RefusalCause

if TYPE_CHECKING:
    from sparrow.net.channel import Channel

log = logging.getLogger(__name__)


class RefusalCounts:
    """The refusals of one listener. All causes are names in the code: none comes from a peer."""

    def __init__(self) -> None:
        self.by_limit: Counter[str] = Counter()
        """Requests and connections that were refused because of a limit."""
        self.by_access: Counter[str] = Counter()
        """Requests without a valid signature or without the permission, and connections without valid TLS."""

    def note(self, error: BaseException) -> None:
        """Count a request that was answered with this error, if a limit or a missing permission is the cause."""
        if isinstance(error, AccessRefused):
            self.by_access[error.cause] += 1
        elif isinstance(error, SparrowError) and error.limit_name is not None:
            self.by_limit[error.limit_name] += 1

    def note_denied(self) -> None:
        """Count a request whose permission its handler found missing, and that may be answered with another error."""
        self.by_access["permission"] += 1

    def access_samples(self) -> list[tuple[tuple[str], float]]:
        """Return the refusals for want of access, as a metric has them: each cause, also if it never happened."""
        return [((cause,), self.by_access[cause]) for cause in get_args(RefusalCause)]


def close_connection(channel: Channel, reason: str) -> None:
    """Close a connection at once, because of a limit, and say why in the log."""
    log.warning("the connection of %(peer)s is closed: %(reason)s", {"peer": channel.address, "reason": reason})
    channel.abort()
