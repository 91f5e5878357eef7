"""Bodies that do not decompress: what a reader of columns does about them, and how many it has met."""

from __future__ import annotations

from logging import Logger
from typing import Literal

from sparrow.model.errors import ProtocolError

OnUndecodable = Literal["raise", "null", "skip"]
"""`raise` an error, read a `null` body, or `skip` the row."""


class UndecodableBodies:
    """The bodies of one queue that did not decompress, and the choice of their reader."""

    def __init__(self, choice: OnUndecodable, queue_name: str) -> None:
        self.choice, self.queue_name = choice, queue_name
        self.count = 0
        self.first_offset = -1
        self.first_cause = ""

    def add(self, queue_offset: int, cause: ProtocolError) -> None:
        """Count a body, or raise `ProtocolError` if the choice is `raise`."""
        if self.choice == "raise":
            raise ProtocolError(
                f"the message of {self.queue_name} at offset {queue_offset} cannot be read: {cause}. Choose null "
                "instead of raise for undecodable bodies to read it with a null body, or skip to leave it out"
            ) from cause
        if not self.count:
            self.first_offset, self.first_cause = queue_offset, str(cause)
        self.count += 1

    def report(self, log: Logger) -> None:
        """Log how many there were, if any. Readers call this once for each range."""
        if self.count:
            log.warning(
                "%(count)d messages of queue %(queue)s are %(consequence)s, because they cannot be decoded. The first "
                "is at offset %(offset)d: %(cause)s",
                {
                    "count": self.count,
                    "queue": self.queue_name,
                    "consequence": "left out" if self.choice == "skip" else "read with a null body",
                    "offset": self.first_offset,
                    "cause": self.first_cause,
                },
            )
