"""Refusals: the caller has to change something."""

from __future__ import annotations

from collections.abc import Sequence

from sparrow.model.errors.base import LimitName, SparrowError


class Refused(SparrowError):
    """The request is understood, and is not carried out as it is."""


class BadRequest(Refused):
    """The frame is complete, but a field of the request is not valid. The connection stays open."""

    def __init__(self, what: str, field: str, problem: str) -> None:
        super().__init__(what, field, problem)
        self.what, self.field, self.problem = what, field, problem

    def __str__(self) -> str:
        return f"{self.what} cannot be read: the field {self.field!r} {self.problem}"


class IllegalName(Refused):
    """A name of a topic, a group or a token has characters or a length that are not allowed."""

    def __init__(self, kind: str, name: str, rule: str) -> None:
        super().__init__(kind, name, rule)
        self.kind, self.name, self.rule = kind, name, rule

    def __str__(self) -> str:
        return f"{self.name!r} is not a legal {self.kind} name: {self.rule}"


class UnknownTopic(Refused):
    """The topic does not exist."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"topic {self.topic!r} does not exist: create it, or enable automatic creation on the brokers"


class TooLarge(Refused):
    """A message, a batch or a property string exceeds a limit."""

    limit_name: LimitName | None = "message_size"

    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(what, size_bytes, limit_bytes)
        self.what, self.size_bytes, self.limit_bytes = what, size_bytes, limit_bytes

    def __str__(self) -> str:
        return (
            f"{self.what} has {self.size_bytes} bytes, the limit is {self.limit_bytes}: send less, or raise the limit"
        )


class TooManyMessages(Refused):
    """A batch has more messages than a broker accepts in one request."""

    limit_name: LimitName | None = "batch_messages"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"the batch has more messages than broker.batch_messages_max = {self.limit}: send them in several batches, "
            "or raise the limit"
        )


class NotPermitted(Refused):
    """The topic, the group or the token does not permit the request."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what} is not permitted: {self.why}"


class UnknownGroup(Refused):
    """The consumer group does not exist. `near` are groups with a similar name."""

    def __init__(self, group: str, near: Sequence[str] = ()) -> None:
        super().__init__(group, near)
        self.group, self.near = group, near

    def __str__(self) -> str:
        remedy = "create it, or enable automatic creation on the brokers"
        if self.near:
            remedy = f"did you mean {' or '.join(map(repr, self.near))}?"
        return f"group {self.group!r} does not exist: {remedy}"


class GroupRequired(Refused):
    """A consumer without a group was asked for something that only a group has."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} needs a consumer group: create the consumer with group=..."


class WrongServer(Refused):
    """A broker listens where a name server is meant, or the other way round."""

    def __init__(self, address: str, is_broker: bool) -> None:
        super().__init__(address, is_broker)
        self.address, self.is_broker = address, is_broker

    def __str__(self) -> str:
        if self.is_broker:
            return (
                f"{self.address} is the address of a broker, not of a name server: use the port of a name server, "
                "usually 9876"
            )
        return (
            f"{self.address} is the address of a name server, not of a broker: use the port of a broker, usually 10911"
        )


class IllegalMessage(Refused):
    """The message has properties that contradict each other or the topic."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"the message is refused: {self.why}"


class UnknownOffset(Refused):
    """The group has not committed an offset for the queue."""

    def __init__(self, group: str, queue: object) -> None:
        super().__init__(group, queue)
        self.group, self.queue = group, queue

    def __str__(self) -> str:
        return f"group {self.group!r} has committed no offset on {self.queue}"


class OffsetConflict(Refused):
    """The committed offset of a group is not the one that a commit expects: another member has committed meanwhile."""

    def __init__(self, group: str, queue: object, expected: int) -> None:
        super().__init__(group, queue, expected)
        self.group, self.queue, self.expected = group, queue, expected

    def __str__(self) -> str:
        return f"the offset of group {self.group!r} on {self.queue} is not {self.expected} any more: read it again"
