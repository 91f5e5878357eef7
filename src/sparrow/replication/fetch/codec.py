"""Fetches and their answers as requests and responses of the wire."""

from __future__ import annotations

import msgspec

from sparrow.model.errors import ProtocolError
from sparrow.replication.core.fetch import Chunk, Diverged, Fetch, FetchAnswer, OutOfRange, Rejected, SafeEnd
from sparrow.wire.headers import AcknowledgeFlush, FetchLog, FetchLogResponse


def fetch_request(fetch: Fetch, segment_bytes: int) -> FetchLog:
    """Return the header of a fetch, by a replica whose segments have this size."""
    return FetchLog(**msgspec.structs.asdict(fetch), segment_bytes=segment_bytes)


def read_fetch(request: FetchLog) -> Fetch:
    """Return the fetch that a header describes."""
    fields = msgspec.structs.asdict(request)
    del fields["segment_bytes"]
    return Fetch(**fields)


def flush_request(word: SafeEnd) -> AcknowledgeFlush:
    """Return the header of an acknowledged flush."""
    return AcknowledgeFlush(**msgspec.structs.asdict(word))


def read_flush(request: AcknowledgeFlush) -> SafeEnd:
    """Return the acknowledged flush that a header describes."""
    return SafeEnd(**msgspec.structs.asdict(request))


def fetch_response(answer: FetchAnswer, *, is_busy: bool = False) -> FetchLogResponse:
    """Return the header of an answer; the bytes of a chunk go into the body. `is_busy`: the leader is."""
    match answer:
        case Chunk():
            return FetchLogResponse(
                kind="chunk",
                epoch=answer.epoch,
                offset=answer.offset,
                chunk_epoch=answer.chunk_epoch,
                high_watermark=answer.high_watermark,
                first=answer.first,
                end=answer.end,
                is_busy=True if is_busy else None,
            )
        case Diverged():
            return FetchLogResponse(kind="diverged", **msgspec.structs.asdict(answer))
        case OutOfRange():
            return FetchLogResponse(kind="outOfRange", **msgspec.structs.asdict(answer))
        case Rejected():
            return FetchLogResponse(kind="rejected", **msgspec.structs.asdict(answer))


def read_answer(response: FetchLogResponse, length: int) -> FetchAnswer:
    """Return the answer that a header and the length of its body describe."""
    found = {name: value for name, value in msgspec.structs.asdict(response).items() if value is not None}
    kind = found.pop("kind")
    found.pop("is_busy", None)
    try:
        if kind == "chunk":
            return Chunk(**found, length=length)
        if kind == "diverged":
            return Diverged(**found)
        return OutOfRange(**found) if kind == "outOfRange" else Rejected(**found)
    except TypeError as cause:
        raise ProtocolError(f"the answer to a fetch lacks a field: {cause}") from cause
