"""Requests that list messages that wait, and their answers: delayed messages and half messages. All are Sparrow's own.

A list is read in the order of a position. `next` is the position after which the next request continues; without it
everything was read. A broker reads a bounded number of messages for one request, also if few of them match.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from sparrow.wire.bodies.codec import Body
from sparrow.wire.headers.codec import JavaLong

TimerPosition = tuple[JavaLong, JavaLong]
"""The delivery time of a delayed message, and a number that is unique within it."""

Entry = TypeVar("Entry")
Position = TypeVar("Position")


class WaitingMessageEntry(Body, frozen=True, kw_only=True):
    """What every message that waits has."""

    topic: str
    """The topic it will be delivered to."""
    store_ms: int
    body_bytes: int = 0
    unique_key: str | None = None
    keys: str | None = None
    tags: str | None = None


class WaitingMessages(Body, Generic[Entry, Position], frozen=True):
    """A part of a list, how many messages were read for it, and where the list continues."""

    messages: list[Entry]
    scanned: int
    next: Position | None = None


class ListDelayed(Body, frozen=True):
    """Asks for delayed messages by delivery time. All given conditions must hold."""

    topic: str | None = None
    """The topic they will be delivered to."""
    unique_key: str | None = None
    from_ms: JavaLong = 0
    until_ms: JavaLong | None = None
    """Due before this time."""
    after: TimerPosition | None = None
    limit: int = 50


class DelayedMessageEntry(WaitingMessageEntry, frozen=True, kw_only=True):
    """A message that waits for its delivery time."""

    position: TimerPosition
    due_ms: int
    recall_handle: str | None = None
    """With it the delivery is cancelled; absent if the message has no unique key."""


class DelayedMessages(WaitingMessages[DelayedMessageEntry, TimerPosition], frozen=True):
    """Delayed messages, the next to be delivered first."""


class ListHalfMessages(Body, frozen=True):
    """Asks for half messages, the oldest first. All given conditions must hold."""

    topic: str | None = None
    """The topic they are meant for."""
    half_offset: JavaLong | None = None
    """Only the half message at this offset of the half queue."""
    after: JavaLong | None = None
    limit: int = 50


class HalfMessageEntry(WaitingMessageEntry, frozen=True, kw_only=True):
    """A half message whose transaction is not ended."""

    half_offset: int
    physical_offset: int
    checks: int
    """How often the broker has checked back."""
    next_check_ms: int
    producer_group: str | None = None
    """Absent if the half message cannot be read now."""


class HalfMessages(WaitingMessages[HalfMessageEntry, int], frozen=True, kw_only=True):
    """Half messages, the oldest first."""

    checks_max: int
    """After this many check-backs a broker gives a transaction up."""
