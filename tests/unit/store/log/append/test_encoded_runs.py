"""Splitting encoded runs at the ends of segments."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.integration.conformance import queue_records

from sparrow.model.errors import Refused, TooLarge
from sparrow.model.queue import Queue
from sparrow.store.log.append.encoded_runs import EncodedRun, check_body_sizes, parse_run, plan_pieces
from sparrow.store.log.consume_queues.consume_queue import ConsumeQueue
from sparrow.wire import columns

QUEUE = ConsumeQueue(Queue("orders", 0), Path("nowhere"), 8)


def run_of(*sizes: int) -> EncodedRun:
    entries = np.zeros(len(sizes), columns.QUEUE_ENTRY_DTYPE)
    entries["size"] = sizes
    starts = columns.starts_from_sizes(np.array(sizes, np.int64))
    return EncodedRun(QUEUE, memoryview(bytes(sum(sizes))), starts, entries, None)


def cuts(runs: list[EncodedRun], room: int, segment_room: int) -> tuple[list[tuple[int, int, int]], int, int]:
    pieces, segments, left = plan_pieces(runs, room, segment_room)
    numbers = {id(run): number for number, run in enumerate(runs)}
    return [(numbers[id(piece.run)], piece.first, piece.stop) for piece in pieces], segments, left


def test_runs_that_fit_are_not_split():
    assert cuts([run_of(10, 20), run_of(30)], 60, 100) == ([(0, 0, 2), (1, 0, 1)], 0, 0)


def test_a_run_fills_the_segment_and_continues_in_the_next():
    assert cuts([run_of(10, 20, 30), run_of(40)], 35, 70) == ([(0, 0, 2), (0, 2, 3), (1, 0, 1)], 1, 0)


def test_a_run_larger_than_a_segment_is_split_as_often_as_needed():
    assert cuts([run_of(*[10] * 9)], 0, 40) == ([(0, 0, 4), (0, 4, 8), (0, 8, 9)], 3, 30)


def test_a_record_that_fits_no_segment_is_too_large():
    with pytest.raises(TooLarge):
        plan_pieces([run_of(10, 41)], 5, 40)


@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), max_size=6), st.integers(0, 60))
def test_a_plan_holds_every_record_once_in_order_and_no_piece_exceeds_its_segment(sizes, room):
    runs = [run_of(*of_run) for of_run in sizes]
    pieces, segments, left = plan_pieces(runs, room, 40)
    rows = [(id(piece.run), row) for piece in pieces for row in range(piece.first, piece.stop)]
    assert rows == [(id(run), row) for run in runs for row in range(len(run.starts))]
    taken = 0
    for piece in pieces:
        size = int(piece.run.entries["size"][piece.first : piece.stop].sum())
        if size > room:  # as the log does
            room, taken = 40, taken + 1
        room -= size
        assert room >= 0
    assert (taken, room) == (segments, left)


def test_only_a_body_above_the_size_limit_is_refused():
    encoded = queue_records(QUEUE.queue, bytes(100), bytes(101))
    run = parse_run(QUEUE, encoded.data, encoded.sizes, store_host_bytes=8, verify_crc=True)
    check_body_sizes(run, 101)
    with pytest.raises(TooLarge):
        check_body_sizes(run, 100)


def test_a_run_with_another_host_size_or_a_wrong_checksum_is_refused():
    encoded = queue_records(QUEUE.queue, "body")
    with pytest.raises(Refused):
        parse_run(QUEUE, encoded.data, encoded.sizes, store_host_bytes=20, verify_crc=True)
    changed = bytearray(encoded.data)
    changed[88] ^= 1
    with pytest.raises(Refused):
        parse_run(QUEUE, memoryview(bytes(changed)), encoded.sizes, store_host_bytes=8, verify_crc=True)
    parse_run(QUEUE, memoryview(bytes(changed)), encoded.sizes, store_host_bytes=8, verify_crc=False)
