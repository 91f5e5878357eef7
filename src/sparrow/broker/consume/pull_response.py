"""The response frames of pulls."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import numpy as np

from sparrow.net.dispatcher import HandlerResponse, encode_response
from sparrow.store.spi import Slice
from sparrow.wire.codes import ADVERTISED_VERSION, ResponseCode
from sparrow.wire.frame import FRAME_BYTES_MAX, ONE_WAY_FLAG, RemotingCommand, Serialization
from sparrow.wire.headers import PullMessage, PullMessageResponse

FOUND, NOT_FOUND, AGAIN, MOVED = (
    int(ResponseCode.SUCCESS),
    int(ResponseCode.PULL_NOT_FOUND),
    int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    int(ResponseCode.PULL_OFFSET_MOVED),
)
_REMARKS = {
    FOUND: "FOUND",
    NOT_FOUND: "NO_NEW_MSG",
    AGAIN: "NO_MATCHED_MSG",
    MOVED: "OFFSET_ILLEGAL",
}
_JSON = Serialization.JSON
_START = Struct(">II")
_FOUND_HEADER = (
    b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"version":'
    + str(ADVERTISED_VERSION).encode()
    + b',"extFields":{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"},'
    b'"remark":"FOUND"}'
)
"""The JSON header of a response with records; an encoder takes twice as long for the whole frame."""
_RECORDS_BYTES_MAX = FRAME_BYTES_MAX - 1024
"""More records may not fit into a frame."""


def encode_pull(
    command: RemotingCommand,
    advised: int,
    code: int,
    next_offset: int,
    first: int,
    end: int,
    body: bytes | Sequence[bytes | memoryview] = b"",
) -> bytes | None:
    """Return the frame of an answer; None for a one-way request."""
    header = PullMessageResponse(advised, next_offset, first, end)
    return encode_response(command, HandlerResponse(header, body, code, _REMARKS[code]))


def encode_found(request: PullMessage, command: RemotingCommand, advised: int, found: Slice) -> bytes | None:
    """Return the frame with the records that were found."""
    first, end = found.bounds
    if request.with_sizes:
        header = PullMessageResponse(advised, found.next_offset, first, end, sizes=len(found.sizes))
        body: list[bytes | memoryview] = [*found.buffers, np.asarray(found.sizes, ">i4").tobytes()]
        return encode_response(command, HandlerResponse(header, body, FOUND, _REMARKS[FOUND]))
    records_bytes = sum(map(len, found.buffers))
    if command.serialization is _JSON and not command.flag & ONE_WAY_FLAG and records_bytes <= _RECORDS_BYTES_MAX:
        text = _FOUND_HEADER % (command.opaque, advised, found.next_offset, first, end)
        return b"".join((_START.pack(4 + len(text) + records_bytes, len(text)), text, *found.buffers))
    return encode_pull(command, advised, FOUND, found.next_offset, first, end, found.buffers)
