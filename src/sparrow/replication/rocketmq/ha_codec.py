"""The bytes of RocketMQ's classic HA port (`DefaultHAService`), the same in 4.9 and 5.x.

    slave -> master   int64 offset                           a report: first where to start, then what the slave has
    master -> slave   int64 offset, int32 n, n bytes of log   a transfer; n = 0 is a heartbeat

1. Integers are big-endian. There is no greeting, no identity and no checksum.
2. A transfer splits records anywhere. Its bytes are passed on as they arrive: only an incomplete head is kept.
"""

from __future__ import annotations

from struct import Struct

import msgspec

from sparrow.model.errors import ProtocolError

_REPORT = Struct(">q")
_TRANSFER_HEAD = Struct(">qi")
TRANSFER_BYTES_MAX = 4 << 20
"""The read buffer of RocketMQ's own slaves: no master can send them more at once."""


class LogBytes(msgspec.Struct, frozen=True):
    """Bytes of the master's log, a transfer or a part of one."""

    offset: int
    data: bytes


class HaHeartbeat(msgspec.Struct, frozen=True):
    """The master has nothing to send; the next transfer starts at `offset`."""

    offset: int


def encode_report(offset: int) -> bytes:
    """Return a report of a slave."""
    return _REPORT.pack(offset)


def encode_transfer(offset: int, data: bytes) -> bytes:
    """Return a transfer of a master; without data it is a heartbeat."""
    return _TRANSFER_HEAD.pack(offset, len(data)) + data


class TransferDecoder:
    """Cuts the byte stream of a master into log bytes and heartbeats."""

    def __init__(self) -> None:
        self._head = b""
        self._offset, self._left = 0, 0
        """Where the rest of the current transfer starts, and how long it is."""

    def feed(self, data: bytes) -> list[LogBytes | HaHeartbeat]:
        """Return what the bytes contain. Raises `ProtocolError` for a head that no master sends."""
        found: list[LogBytes | HaHeartbeat] = []
        at = 0
        while at < len(data):
            if self._left:
                part = data[at : at + self._left]
                found.append(LogBytes(self._offset, part))
                self._offset += len(part)
                self._left -= len(part)
                at += len(part)
                continue
            missing = _TRANSFER_HEAD.size - len(self._head)
            self._head += data[at : at + missing]
            at += missing
            if len(self._head) < _TRANSFER_HEAD.size:
                break
            self._offset, self._left = _TRANSFER_HEAD.unpack(self._head)
            self._head = b""
            if self._offset < 0 or not 0 <= self._left <= TRANSFER_BYTES_MAX:
                raise ProtocolError(
                    f"a transfer of {self._left} bytes at offset {self._offset}: this is no HA port of a RocketMQ "
                    "master in classic mode"
                )
            if not self._left:
                found.append(HaHeartbeat(self._offset))
        return found
