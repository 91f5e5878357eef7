"""Messages delivered once more: a request of Sparrow's own."""

from __future__ import annotations

import msgspec

from sparrow.wire.codes import Code
from sparrow.wire.headers.codec import Flag, Header, Int, Long


class ResendMessages(Header, frozen=True):
    """Which messages of a topic, said in one of three ways: by offsets, by keys, by time. Keys may be said together
    with a time."""

    topic: str
    group: str | None = msgspec.field(default=None, name="consumerGroup")
    """None: every group that has committed an offset on the topic."""
    queue_id: Int | None = None
    priority: str | None = None
    """high, middle or low: the queues of that lane."""
    begin: Long | None = None
    end: Long | None = None
    """Queue offsets, both included."""
    keys: str | None = None
    """One or several, with spaces in between."""
    from_ms: Long | None = msgspec.field(default=None, name="beginTimestamp")
    to_ms: Long | None = msgspec.field(default=None, name="endTimestamp")
    """Store times; the second is not included."""
    is_dry_run: Flag = msgspec.field(default=False, name="dryRun")
    is_forced: Flag = msgspec.field(default=False, name="isForce")


class MessagesResent(Header, frozen=True):
    count: Long
    missing: Long
    groups: str = ""
    """With commas in between."""


REQUESTS: dict[Code, type[Header]] = {Code.RESEND_MESSAGES: ResendMessages}
RESPONSES: dict[Code, type[Header]] = {Code.RESEND_MESSAGES: MessagesResent}
