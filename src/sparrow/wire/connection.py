"""The incoming byte stream of a connection, without a socket: bytes in, complete commands out.

1. The same commands come out in the same order, however the stream is split.
2. At most one incomplete frame is buffered, and its size is checked as soon as its first 8 bytes have arrived.
3. A byte of a body is copied once, into the body. (Pieces below 4 KiB are joined first, and so are copied twice.)
4. After a protocol error no more commands come out: no later byte can be trusted to start a frame.
"""

from __future__ import annotations

from sparrow.model.errors import ProtocolError
from sparrow.wire.frame import (
    FRAME_BYTES_MAX,
    FRAME_PREFIX_BYTES,
    RemotingCommand,
    decode_header_and_body,
    read_frame_prefix,
)

SMALL_PIECE_BYTES = 4096
"""Smaller pieces are joined, so that a peer that sends single bytes cannot cause millions of objects."""


class Connection:
    """Decodes the byte stream of one peer into commands. Not thread-safe."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX, header_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max, self._header_bytes_max = frame_bytes_max, header_bytes_max
        self._start = bytearray()  # prefix of the incomplete frame, at most 8 bytes
        self._pieces: list[bytearray | memoryview] = []  # what follows the prefix
        self._missing = 0  # bytes until the frame is complete, once its prefix is
        self._shape = (0, 0, 0)  # its size, serialization and header length
        self.held_bytes = 0
        """The buffered bytes of an incomplete frame. If not 0 when the peer closes, a frame was cut off."""
        self.error: ProtocolError | None = None
        """The protocol error that ended the stream. Commands before it have been returned."""

    def feed(self, data: bytes) -> list[RemotingCommand]:
        """Return the commands that `data` completes. Once `error` is set, answer these and close the connection."""
        commands: list[RemotingCommand] = []
        if self.error is not None:
            return commands
        try:
            at = self._resume(data, commands) if self._start else 0
            end = len(data)
            while end - at >= FRAME_PREFIX_BYTES:
                size, serialization, header_bytes = read_frame_prefix(
                    data, at, self._frame_bytes_max, self._header_bytes_max
                )
                next_at = at + size
                if next_at > end:
                    break
                body_at = at + FRAME_PREFIX_BYTES + header_bytes
                commands.append(
                    decode_header_and_body(
                        serialization, data[at + FRAME_PREFIX_BYTES : body_at], data[body_at:next_at]
                    )
                )
                at = next_at
            if at < end:
                self._keep(data, at)
        except ProtocolError as error:
            self.error = error
            self._forget()
        return commands

    def _resume(self, data: bytes, commands: list[RemotingCommand]) -> int:
        """Continue the incomplete frame. Return the position in `data` where the next one starts."""
        at = 0
        if len(self._start) < FRAME_PREFIX_BYTES:
            at = self._take_start(data, 0)
            if len(self._start) < FRAME_PREFIX_BYTES:
                return at
        until = min(len(data), at + self._missing)
        self._take_piece(data, at, until)
        if not self._missing:
            commands.append(self._finished())
        return until

    def _keep(self, data: bytes, at: int) -> None:
        """Buffer the rest of `data`, which is the start of a frame."""
        at = self._take_start(data, at)
        self._take_piece(data, at, len(data))

    def _take_start(self, data: bytes, at: int) -> int:
        until = min(len(data), at + FRAME_PREFIX_BYTES - len(self._start))
        self._start += data[at:until]
        self.held_bytes += until - at
        if len(self._start) == FRAME_PREFIX_BYTES:
            self._shape = read_frame_prefix(self._start, 0, self._frame_bytes_max, self._header_bytes_max)
            self._missing = self._shape[0] - FRAME_PREFIX_BYTES
        return until

    def _take_piece(self, data: bytes, at: int, until: int) -> None:
        if at == until:
            return
        self._missing -= until - at
        self.held_bytes += until - at
        if until - at >= SMALL_PIECE_BYTES:
            self._pieces.append(memoryview(data)[at:until])
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += data[at:until]
        else:
            self._pieces.append(bytearray(data[at:until]))

    def _finished(self) -> RemotingCommand:
        _, serialization, header_bytes = self._shape
        header, body = bytearray(), []
        for piece in self._pieces:
            wanted = header_bytes - len(header)
            if wanted:
                header += piece[:wanted]
                piece = memoryview(piece)[wanted:]
            body.append(piece)
        command = decode_header_and_body(serialization, bytes(header), b"".join(body))
        self._forget()
        return command

    def _forget(self) -> None:
        """Forget the incomplete frame."""
        self._start.clear()
        self._pieces.clear()
        self.held_bytes = 0
