"""The HA port's byte stream: any split of the bytes gives the same log, and a session takes up where it was cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.model.errors import ProtocolError
from sparrow.replication.rocketmq.ha_codec import (
    TRANSFER_BYTES_MAX,
    HaHeartbeat,
    LogBytes,
    TransferDecoder,
    encode_report,
    encode_transfer,
)
from sparrow.replication.rocketmq.ha_session import HaSession

CHUNKS = st.lists(st.binary(max_size=40), max_size=12)  # an empty chunk is a heartbeat


def stream_of(start: int, chunks: list[bytes]) -> bytes:
    sent = b""
    for chunk in chunks:
        sent += encode_transfer(start, chunk)
        start += len(chunk)
    return sent


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[begin:end] for begin, end in pairwise(places)]


@given(st.integers(0, 1 << 60), CHUNKS, st.lists(st.integers(0, 1 << 16), max_size=20))
def test_any_split_of_the_bytes_gives_the_same_log(start: int, chunks: list[bytes], cuts: list[int]) -> None:
    decoder = TransferDecoder()
    found = [each for piece in cut(stream_of(start, chunks), cuts) for each in decoder.feed(piece)]
    log, heartbeats = b"", 0
    for each in found:
        assert each.offset == start + len(log)
        if isinstance(each, LogBytes):
            log += each.data
        else:
            heartbeats += 1
    assert log == b"".join(chunks)
    assert heartbeats == chunks.count(b"")


@given(st.binary(max_size=300), st.lists(st.integers(0, 1 << 16), max_size=8), st.integers(1, 50))
def test_a_session_that_is_cut_anywhere_continues_without_gap_or_repeat(
    rest: bytes, cuts: list[int], chunk_bytes: int
) -> None:
    log = b"\0" + rest  # the highest byte of the size of the first record
    copied = b""
    for limit in [*cuts, 1 << 20]:
        session = HaSession(len(copied), 0.0)
        start = int.from_bytes(session.first_report, "big")
        assert start == max(1, len(copied)), "a report of 0 would mean the last file"
        chunks = [log[at : at + chunk_bytes] for at in range(start, len(log), chunk_bytes)]
        for piece in cut(stream_of(start, chunks)[:limit], cuts):
            found = session.take(piece, 0.0)
            if found is not None:
                assert found.offset == len(copied)
                copied += found.data
    assert copied == (log if len(log) > 1 else b"")


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 31), (1 << 31) - 1))
def test_a_head_that_no_master_sends_is_refused(offset: int, size: int) -> None:
    head = offset.to_bytes(8, "big", signed=True) + size.to_bytes(4, "big", signed=True)
    if offset >= 0 and 0 <= size <= TRANSFER_BYTES_MAX:
        assert TransferDecoder().feed(head) == ([] if size else [HaHeartbeat(offset)])
    else:
        with pytest.raises(ProtocolError):
            TransferDecoder().feed(head)


def test_a_report_is_eight_bytes() -> None:
    assert encode_report(1) == b"\0\0\0\0\0\0\0\x01"
