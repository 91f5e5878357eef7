"""The base class of all errors, and errors that are neither refusals nor outages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from sparrow.model.send_result import SentRange


LimitName = Literal[
    "batch_keys",
    "batch_messages",
    "client_groups",
    "database_backlog",
    "disk",
    "kv_bytes",
    "message_size",
    "pops_in_flight",
    "request_size",
    "requests_in_progress",
    "stages",
]
"""The limits whose refusals a server counts by the errors that it answers with."""


class SparrowError(Exception):
    """The base class of every error that Sparrow raises on purpose."""

    limit_name: LimitName | None = None
    """The limit that is the cause, as the metrics of a server name it; None: something else is."""


_Error = TypeVar("_Error", bound=SparrowError)


def by_limit(name: LimitName, error: _Error) -> _Error:
    """Return the error, with the name of the limit that is the cause."""
    error.limit_name = name
    return error


class ProtocolError(SparrowError):
    """A peer or a file violates the format. Only that connection is closed."""


class UnreadableBody(SparrowError):
    """The body of a message is not what its reader expects. The cause says what is wrong."""

    def __init__(self, topic: str, message_id: str | None, body: bytes, codec: object, why: object) -> None:
        super().__init__(topic, message_id, body, codec, why)
        self.topic, self.message_id, self.body, self.codec, self.why = topic, message_id, body, codec, why

    def __str__(self) -> str:
        name = type(self.codec).__name__
        form = "the expected JSON" if name == "JsonCodec" else f"what {name} reads"
        which = f"message {self.message_id}" if self.message_id else "a message"
        begins = f"it begins with {bytes(self.body[:40])!r}" if self.body else "it is empty"
        return (
            f"the body of {which} of topic {self.topic!r} is not {form} ({self.why}); {begins}: read "
            "message.body, or decode it as its sender encoded it"
        )


class PartialSend(SparrowError):
    """A table or a list of messages was sent only in part; the cause says why."""

    def __init__(self, topic: str, total: int, stored: Sequence[SentRange]) -> None:
        super().__init__(topic, total, stored)
        self.topic, self.total, self.stored = topic, total, tuple(stored)

    @property
    def acknowledged(self) -> int:
        """How many messages are stored."""
        return sum(len(each.indexes) for each in self.stored)

    @property
    def missing(self) -> list[int]:
        """The messages that are not acknowledged, by their positions in what was sent, to be sent again.

        Those of a request without a response may be stored.
        """
        acknowledged = {index for each in self.stored for index in each.indexes}
        return [index for index in range(self.total) if index not in acknowledged]

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} of {self.total} messages were acknowledged by topic {self.topic!r} before a batch "
            "failed"
            + (f": {self.__cause__}" if self.__cause__ is not None else "")
            + "; `missing` has the positions of the others, to be sent again"
        )
