"""The offset window: offsets of a queue that a consumer is handling."""

import time

from sparrow.client.consume.offset_window import STALE_OFFSETS_MAX, OffsetWindow


def test_a_new_window_has_nothing_to_commit():
    window = OffsetWindow()
    assert window.committable_offset is None
    assert window.next_offset is None
    assert (window.count, window.bytes, window.span) == (0, 0, 0)


def test_a_window_can_commit_its_start_offset():
    assert OffsetWindow(7).committable_offset == 7


def test_the_lowest_unhandled_message_limits_the_commit():
    window = OffsetWindow()
    window.add([(5, 10), (6, 20), (8, 30)], 10)
    window.done([6, 8])
    assert window.committable_offset == 5
    window.done([5])
    assert window.committable_offset == 10


def test_count_bytes_and_span_cover_the_unhandled_messages():
    window = OffsetWindow()
    window.add([(5, 10), (6, 20), (9, 30)], 10)
    assert (window.count, window.bytes, window.span) == (3, 60, 4)
    window.done([5, 9])
    assert (window.count, window.bytes, window.span) == (1, 20, 0)


def test_a_pull_without_matching_messages_advances_the_offset():
    window = OffsetWindow(3)
    window.add([], 40)
    assert window.committable_offset == window.next_offset == 40


def test_unknown_offsets_are_ignored():
    window = OffsetWindow()
    window.add([(5, 10), (6, 10)], 7)
    window.done([4, 5, 5, 99])
    assert (window.count, window.bytes, window.committable_offset) == (1, 10, 6)


def test_a_message_that_is_in_the_window_is_not_counted_twice():
    window = OffsetWindow()
    window.add([(5, 10), (6, 10)], 7)
    window.add([(6, 10), (7, 10)], 8)
    assert (window.count, window.bytes) == (3, 30)


def test_a_pull_from_an_earlier_offset_moves_the_commit_back():
    window = OffsetWindow()
    window.add([(5, 10), (6, 10), (7, 10)], 8)
    window.done([5, 6])
    window.add([(5, 10)], 6)
    assert (window.committable_offset, window.count, window.span) == (5, 2, 2)


def test_a_restart_drops_the_messages_in_the_window():
    window = OffsetWindow()
    window.add([(5, 10)], 6)
    window.restart(2)
    window.done([5])
    assert (window.committable_offset, window.count, window.bytes, window.span) == (2, 0, 0, 0)


def test_each_limit_alone_fills_the_window():
    window = OffsetWindow()
    window.add([(5, 10), (8, 10)], 9)
    assert not window.is_full(count_max=3, bytes_max=21, span_max=3)
    assert window.is_full(count_max=2, bytes_max=21, span_max=3)
    assert window.is_full(count_max=3, bytes_max=20, span_max=3)
    assert window.is_full(count_max=3, bytes_max=21, span_max=2)


def test_an_empty_window_is_never_full():
    assert not OffsetWindow().is_full(count_max=0, bytes_max=0, span_max=0)


def test_a_stuck_message_does_not_make_the_list_of_offsets_grow():
    window = OffsetWindow()
    window.add([(0, 1), (1, 1)], 2)
    longest = 0
    for offset in range(1, 20 * STALE_OFFSETS_MAX):
        window.add([(offset + 1, 1)], offset + 2)
        window.done([offset])
        longest = max(longest, len(window._offsets))
    assert longest <= 2 * window.count + STALE_OFFSETS_MAX + 1
    assert (window.committable_offset, window.count, window.span) == (0, 2, 20 * STALE_OFFSETS_MAX)


def test_handling_messages_in_order_costs_the_same_for_each():
    # A quadratic window needs minutes for 200,000 messages; this one needs a fraction of a second.
    count = 200_000
    window = OffsetWindow()
    started = time.perf_counter()
    window.add(((offset, 1) for offset in range(count)), count)
    for offset in range(count):
        window.done((offset,))
        assert window.committable_offset == offset + 1
    assert time.perf_counter() - started < 20


def test_batch_counts_its_messages_and_is_consumed_as_a_whole() -> None:
    window = OffsetWindow(0)
    window.add_batches([(0, 300, 30)], 30)
    window.add_batches([(30, 100, 10)], 40)
    assert (window.count, window.bytes, window.span, window.committable_offset) == (40, 400, 39, 0)
    assert window.is_full(count_max=40, bytes_max=1000, span_max=1000)
    window.done([30])
    assert (window.count, window.committable_offset) == (30, 0)
    window.done([0])
    assert (window.count, window.bytes, window.span, window.committable_offset) == (0, 0, 0, 40)
    window.add_batches([(40, 1, 5)], 45)
    window.restart(7)
    assert (window.count, window.committable_offset) == (0, 7)
