"""The history of a torture run: a file of JSON lines that is only appended to.

Clients write what they ask for before they ask, and what they are told or receive when it arrives. Faults that change
the meaning of other records (clocks) are written too. `checker` reads the file afterwards; nothing else is passed on.

1. The order of the lines is the order of events: all clients are in one process and one event loop.
2. A decision to commit or roll back is written before it is sent to a broker.
3. Times are ms since the epoch, of the clock of the test process, which no fault sets.
"""

from __future__ import annotations

import random
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec


class Sent(msgspec.Struct, tag=True, frozen=True, omit_defaults=True):
    """A client is about to send a message for the first time."""

    id: str
    """`load/key/number`: unique in the run."""
    at_ms: int
    key: str = ""
    """The ordering key; messages of a key are sent one after the other."""
    number: int = 0
    """The position among the messages of the key, from 1."""
    due_ms: int | None = None
    """The earliest time of its delivery."""
    delay_ms: int | None = None
    """The delay of its level, which the broker counts from the receipt by its own clock."""
    is_half: bool = False
    """Whether it is delivered only if its transaction is committed."""


class Acknowledged(msgspec.Struct, tag=True, frozen=True, omit_defaults=True):
    """The broker has stored the message."""

    id: str
    at_ms: int
    place: str | None = None
    """Where consumers find it; None if the broker moves it later."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """A request about the message has failed: whether the broker has executed it is unknown."""

    id: str
    at_ms: int
    error: str


class Decided(msgspec.Struct, tag=True, frozen=True):
    """The producer has decided a transaction, and tells the broker next."""

    id: str
    at_ms: int
    commits: bool


class Received(msgspec.Struct, tag=True, frozen=True, omit_defaults=True):
    """A consumer has got the message."""

    id: str
    at_ms: int
    place: str | None = None
    is_intact: bool = True
    """Whether its body is the one that was sent."""


class Popped(msgspec.Struct, tag=True, frozen=True):
    """The broker has accepted the acknowledgement of a popped message."""

    id: str
    at_ms: int


class ClockSet(msgspec.Struct, tag=True, frozen=True):
    """The wall clock of a server was set: it is now so far ahead of the real time, or behind if negative."""

    server: str
    at_ms: int
    offset_ms: int


class Fault(msgspec.Struct, tag=True, frozen=True):
    """A fault is over, and all loads have made progress since."""

    kind: str
    begun_ms: int
    ended_ms: int
    recovered_ms: int
    detail: str


class Connections(msgspec.Struct, tag=True, frozen=True):
    """How many connections the brokers had."""

    at_ms: int
    count: int


Record = Sent | Acknowledged | Failed | Decided | Received | Popped | ClockSet | Fault | Connections


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class HistoryFile:
    """Appends records, and knows which messages the brokers still owe to the consumers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._encoder = msgspec.json.Encoder()
        self.acknowledged: Counter[str] = Counter()
        """How many messages of each load were acknowledged."""
        self.owed: set[str] = set()
        """Messages that must arrive, and have not arrived: the run may end when there are none."""
        self._received: set[str] = set()
        self._halves: set[str] = set()
        self._stored: set[str] = set()
        self._committed: set[str] = set()

    def write(self, record: Record) -> None:
        self._file.write(self._encoder.encode(record) + b"\n")
        match record:
            case Sent(id=name, is_half=True):
                self._halves.add(name)
            case Acknowledged(id=name):
                self.acknowledged[load_of(name)] += 1
                self._stored.add(name)
                self._owe(name)
            case Decided(id=name, commits=True):
                self._committed.add(name)
                self._owe(name)
            case Received(id=name):
                self._received.add(name)
                self.owed.discard(name)

    def _owe(self, name: str) -> None:
        is_owed = name in self._stored and (name not in self._halves or name in self._committed)
        if is_owed and name not in self._received:
            self.owed.add(name)

    def close(self) -> None:
        self._file.close()


def read_history(path: Path) -> Iterator[Record]:
    decoder = msgspec.json.Decoder(Record)
    with path.open("rb") as file:
        for line in file:
            yield decoder.decode(line)


def load_of(name: str) -> str:
    """Return the load that a message belongs to."""
    return name.partition("/")[0]


# -- bodies -----------------------------------------------------------------------------------------------------------

_BODY_BYTES = 300


def make_body(name: str) -> bytes:
    """Return the body of a message: its id, and bytes that follow from it, so that a wrong one shows."""
    start = name.encode() + b"\n"
    return start + random.Random(zlib.crc32(start)).randbytes(_BODY_BYTES)


def read_body(body: bytes) -> tuple[str, bool]:
    """Return the id of the message, and whether its body is the one that was sent."""
    name = body.partition(b"\n")[0].decode(errors="replace")
    return name, body == make_body(name)


def format_place(topic: str, queue_id: int, offset: int) -> str:
    return f"{topic}/{queue_id}@{offset}"
