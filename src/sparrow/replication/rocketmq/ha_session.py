"""The slave's side of one connection to an HA port, without I/O: what to report, what to append, when to give up.

1. The first report is the offset of the next byte wanted. A report of 0 would mean "from the last file", so an empty
   slave that wants everything reports 1. The byte before it is 0: it is the highest byte of the size of the first
   record, which is below 16 MiB. `take` puts it in front.
2. Later reports are acknowledgements. They tell what is durable, never less than the first report: of several reports
   in one read, a master looks at the last one only.
3. Transfers must continue where the last one ended, heartbeats included.
4. The session starts a little before the end of our log, and compares: a master with another log is found at once.
"""

from __future__ import annotations

from sparrow.model.errors import ProtocolError, Refused
from sparrow.replication.rocketmq.ha_codec import HaHeartbeat, LogBytes, TransferDecoder, encode_report

REPORT_INTERVAL_S = 5.0
"""`haSendHeartbeatInterval`: a slave reports at least this often."""
SILENCE_S_MAX = 20.0
"""`haHousekeepingInterval`: who reads nothing for this long closes the connection."""
_IDLE_HEARTBEATS_MAX = 2


class HaSession:
    """One connection. Times are those of a monotonic clock, in seconds."""

    def __init__(self, end: int, now_s: float, *, tail: bytes = b"") -> None:
        """Start a session for a log that ends at `end`, durably. `tail`: its last bytes, which the master must have."""
        assert len(tail) < max(end, 1), "a report of 0 would mean the last file"
        self._lacks_first_byte = end == 0
        self._tail = tail
        self.next_offset = max(end, 1) - len(tail)
        """Where the next transfer must start."""
        self._acknowledged = self.next_offset
        self._decoder = TransferDecoder()
        self._idle_heartbeats = 0
        self._read_at_s = self._reported_at_s = now_s

    @property
    def first_report(self) -> bytes:
        return encode_report(self._acknowledged)

    @property
    def is_idle(self) -> bool:
        """Whether the master sends heartbeats only. If it has more, it does not hold the offset that we wait for."""
        return self._idle_heartbeats >= _IDLE_HEARTBEATS_MAX

    def take(self, data: bytes, now_s: float) -> LogBytes | None:
        """Take bytes from the socket; return the log bytes among them that are new.

        Raises `ProtocolError` for a gap, `Refused` for another log.
        """
        self._read_at_s = now_s
        parts: list[bytes] = []
        start = self.next_offset
        for found in self._decoder.feed(data):
            if found.offset != self.next_offset:
                raise ProtocolError(f"the master continues at {found.offset}, and our log at {self.next_offset}")
            if isinstance(found, HaHeartbeat):
                self._idle_heartbeats += 1
                continue
            self._idle_heartbeats = 0
            self.next_offset += len(found.data)
            fresh = self._compare(found)
            start += len(found.data) - len(fresh)
            if fresh:
                parts.append(fresh)
        if not parts:
            return None
        if self._lacks_first_byte:
            self._lacks_first_byte = False
            return LogBytes(0, b"".join((b"\0", *parts)))
        return LogBytes(start, b"".join(parts))

    def _compare(self, found: LogBytes) -> bytes:
        """Return what follows our tail."""
        known = len(self._tail[: len(found.data)])
        if found.data[:known] != self._tail[:known]:
            raise Refused(
                f"the log of the master differs from ours behind {found.offset}: it is another master, or it was "
                "restored. Follow into an empty directory"
            )
        self._tail = self._tail[known:]
        return found.data[known:]

    def report(self, durable: int, now_s: float) -> bytes | None:
        """Return the report that is due: more is durable, or the last one is long ago."""
        if durable <= self._acknowledged and now_s - self._reported_at_s < REPORT_INTERVAL_S:
            return None
        self._acknowledged = max(self._acknowledged, durable)
        self._reported_at_s = now_s
        return encode_report(self._acknowledged)

    def is_lost(self, now_s: float) -> bool:
        """Return whether the master has been silent for too long."""
        return now_s - self._read_at_s > SILENCE_S_MAX


def starting_point(end: int, *, master_first: int, master_end: int) -> int:
    """Return where our log, which ends at `end`, continues: at its end, or at the master's first byte.

    In the second case everything we have is deleted: the master no longer has what we need next. Raises `Refused` if
    our log is not the beginning of the master's.
    """
    if end > master_end:
        raise Refused(
            f"our log ends at {end}, and that of the master at {master_end}: the master has lost messages, or it is "
            "another one. Follow into an empty directory"
        )
    return master_first if end < master_first else end
