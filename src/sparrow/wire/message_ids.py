"""Message ids: the offset id, which locates a record, and the unique id, which its sender assigns.

Both are hexadecimal and, with IPv4, 32 characters long; an id does not tell its kind.

    offset id                           unique id, as Java makes it
    bytes   field                       bytes   field
    4 / 16  address of the store        4 / 16  address of the client
    4       port                        2       low half of the process id
    8       physical offset             4       class loader in Java, generator in Sparrow
                                        4       ms since the start of the month
                                        2       counter

A received unique id is opaque and case-sensitive (Go writes half of it in lower case); only its time is decoded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import NamedTuple

from sparrow.model.errors import ProtocolError
from sparrow.model.message import Host
from sparrow.model.queue import PhysicalOffset

_IPV4_CHARS, _IPV6_CHARS = 32, 56
_PORT_AND_OFFSET = Struct(">iq")
_TAIL = Struct(">IH")
_MS_MAX = 0xFFFF_FFFF


class OffsetId(NamedTuple):
    """The contents of an offset id. Clients connect to its host."""

    host: Host
    physical_offset: PhysicalOffset


def format_offset_id(host: Host, physical_offset: int) -> str:
    """Return the offset id of the record at a physical offset."""
    return (host.ip + _PORT_AND_OFFSET.pack(host.port, physical_offset)).hex().upper()


def offset_id_prefix(host: Host) -> str:
    """Return the prefix of all offset ids of a broker: `prefix + f"{physical_offset:016X}"` is the fastest way."""
    return (host.ip + _PORT_AND_OFFSET.pack(host.port, 0)[:4]).hex().upper()


def parse_offset_id(text: str) -> OffsetId:
    """Parse an offset id, or raise `ProtocolError`."""
    raw = _unhex(text, "an offset message id")
    port, physical_offset = _PORT_AND_OFFSET.unpack(raw[-_PORT_AND_OFFSET.size :])
    if not 0 <= port <= 0xFFFF or physical_offset < 0:
        raise ProtocolError(f"{text!r} is not an offset message id: port {port}, offset {physical_offset}")
    return OffsetId(Host(raw[: -_PORT_AND_OFFSET.size], port), PhysicalOffset(physical_offset))


class UniqueId(NamedTuple):
    """The contents of a unique id in Java's format."""

    ip: bytes
    pid: int
    generator_id: int
    ms_of_month: int
    counter: int


def parse_unique_id(text: str) -> UniqueId:
    """Parse a unique id in Java's format, or raise `ProtocolError`."""
    raw = _unhex(text, "a unique message id")
    ms_of_month, counter = _TAIL.unpack(raw[-6:])
    return UniqueId(
        raw[:-12], int.from_bytes(raw[-12:-10], "big"), int.from_bytes(raw[-10:-6], "big"), ms_of_month, counter
    )


def format_unique_id(parts: UniqueId) -> str:
    """Return the unique id with these contents."""
    fixed = parts.ip + parts.pid.to_bytes(2, "big") + parts.generator_id.to_bytes(4, "big")
    return (fixed + _TAIL.pack(parts.ms_of_month, parts.counter)).hex().upper()


def unique_id_time(text: str, now: datetime) -> datetime:
    """Return when a unique id was made. It has no month: use that of `now`, or the one before if the time is ahead."""
    month = _month_of(now)
    made = month + timedelta(milliseconds=parse_unique_id(text).ms_of_month)
    if made > now:
        made += _month_of(month - timedelta(days=1)) - month
    return made


class UniqueIdGenerator:
    """Generates unique ids. Threads may share a generator.

    Two ids are equal only if a generator makes more than 65,536 in one millisecond, or if it makes one at the same
    millisecond of two months with the same counter: the counter has 16 bits, and the time starts again each month.
    That is RocketMQ's format. An application that cannot accept this adds a key of its own.
    """

    def __init__(self, ip: bytes, pid: int, generator_id: int, clock_ms: Callable[[], int]) -> None:
        """`generator_id` distinguishes the generators of one process; `clock_ms` returns ms since the epoch."""
        if len(ip) not in (4, 16):
            raise ValueError(f"an address has 4 or 16 bytes, not {len(ip)}")
        fixed = ip + (pid & 0xFFFF).to_bytes(2, "big") + (generator_id & 0xFFFF_FFFF).to_bytes(4, "big")
        self._prefix = fixed.hex().upper()
        self._clock_ms = clock_ms
        self._counter = 0
        self._lock = threading.Lock()
        self._month_ms = self._next_month_ms = 0
        self._now_ms, self._text = -1, ""
        """The millisecond of the last id, and what all ids of that millisecond begin with."""

    def make(self) -> str:
        """Return a new unique id."""
        with self._lock:
            now_ms = self._clock_ms()
            if now_ms != self._now_ms:
                self._start_ms(now_ms)
            counter = self._counter
            self._counter = counter + 1 & 0xFFFF
            return f"{self._text}{counter:04X}"

    def make_many(self, count: int) -> list[str]:
        """Return new unique ids; all have the time of the call."""
        with self._lock:
            now_ms = self._clock_ms()
            if now_ms != self._now_ms:
                self._start_ms(now_ms)
            text, first = self._text, self._counter
            self._counter = first + count & 0xFFFF
            return [f"{text}{counter & 0xFFFF:04X}" for counter in range(first, first + count)]

    @property
    def id_chars(self) -> int:
        """How many characters an id has."""
        return len(self._prefix) + 12

    def _start_ms(self, now_ms: int) -> None:
        if not self._month_ms <= now_ms < self._next_month_ms:
            month = _month_of(datetime.fromtimestamp(now_ms / 1000, UTC))
            self._month_ms = int(month.timestamp() * 1000)
            self._next_month_ms = int(_month_of(month + timedelta(days=32)).timestamp() * 1000)
        self._now_ms, self._text = now_ms, f"{self._prefix}{now_ms - self._month_ms & _MS_MAX:08X}"


def _month_of(moment: datetime) -> datetime:
    # UTC, where Java uses local time: the two are never compared, and UTC has no repeated hour.
    return moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _unhex(text: str, what: str) -> bytes:
    if len(text) not in (_IPV4_CHARS, _IPV6_CHARS):
        raise ProtocolError(f"{what} has {_IPV4_CHARS} or {_IPV6_CHARS} characters, not {len(text)}")
    try:
        raw = bytes.fromhex(text)
    except ValueError as cause:
        raise ProtocolError(f"{text!r} is not {what}: it is not hexadecimal") from cause
    if len(raw) * 2 != len(text):  # fromhex ignores spaces
        raise ProtocolError(f"{text!r} is not {what}: it is not hexadecimal")
    return raw
