"""What a consumer holds of a queue."""

import time

from sparrow.client.offset_window import STALE_OFFSETS_MAX, OffsetWindow


def test_a_new_window_has_nothing_to_commit():
    window = OffsetWindow()
    assert window.committable_offset is None
    assert window.next_offset is None
    assert (window.count, window.bytes, window.span) == (0, 0, 0)


def test_a_window_that_starts_at_an_offset_may_commit_it():
    assert OffsetWindow(7).committable_offset == 7


def test_the_first_message_in_hand_holds_back_the_commit():
    window = OffsetWindow()
    window.add([(5, 10), (6, 20), (8, 30)], 10)
    window.done([6, 8])
    assert window.committable_offset == 5
    window.done([5])
    assert window.committable_offset == 10


def test_count_bytes_and_span_are_of_what_is_in_hand():
    window = OffsetWindow()
    window.add([(5, 10), (6, 20), (9, 30)], 10)
    assert (window.count, window.bytes, window.span) == (3, 60, 4)
    window.done([5, 9])
    assert (window.count, window.bytes, window.span) == (1, 20, 0)


def test_a_pull_that_found_nothing_of_interest_moves_on():
    window = OffsetWindow(3)
    window.add([], 40)
    assert window.committable_offset == window.next_offset == 40


def test_unknown_offsets_are_passed_over():
    window = OffsetWindow()
    window.add([(5, 10), (6, 10)], 7)
    window.done([4, 5, 5, 99])
    assert (window.count, window.bytes, window.committable_offset) == (1, 10, 6)


def test_a_message_in_hand_is_not_counted_twice():
    window = OffsetWindow()
    window.add([(5, 10), (6, 10)], 7)
    window.add([(6, 10), (7, 10)], 8)
    assert (window.count, window.bytes) == (3, 30)


def test_a_pull_that_went_back_holds_back_the_commit_again():
    window = OffsetWindow()
    window.add([(5, 10), (6, 10), (7, 10)], 8)
    window.done([5, 6])
    window.add([(5, 10)], 6)
    assert (window.committable_offset, window.count, window.span) == (5, 2, 2)


def test_a_restart_forgets_what_is_in_hand():
    window = OffsetWindow()
    window.add([(5, 10)], 6)
    window.restart(2)
    window.done([5])
    assert (window.committable_offset, window.count, window.bytes, window.span) == (2, 0, 0, 0)


def test_each_limit_fills_the_window_by_itself():
    window = OffsetWindow()
    window.add([(5, 10), (8, 10)], 9)
    assert not window.is_full(count_max=3, bytes_max=21, span_max=3)
    assert window.is_full(count_max=2, bytes_max=21, span_max=3)
    assert window.is_full(count_max=3, bytes_max=20, span_max=3)
    assert window.is_full(count_max=3, bytes_max=21, span_max=2)


def test_an_empty_window_is_never_full():
    assert not OffsetWindow().is_full(count_max=0, bytes_max=0, span_max=0)


def test_a_hanging_message_does_not_make_the_line_grow():
    window = OffsetWindow()
    window.add([(0, 1), (1, 1)], 2)
    longest = 0
    for offset in range(1, 20 * STALE_OFFSETS_MAX):
        window.add([(offset + 1, 1)], offset + 2)
        window.done([offset])
        longest = max(longest, len(window._offsets))
    assert longest <= 2 * window.count + STALE_OFFSETS_MAX + 1
    assert (window.committable_offset, window.count, window.span) == (0, 2, 20 * STALE_OFFSETS_MAX)


def test_finishing_one_by_one_from_the_front_costs_the_same_each_time():
    # With a quadratic window 200,000 messages take minutes; with ours a fraction of a second.
    count = 200_000
    window = OffsetWindow()
    started = time.perf_counter()
    window.add(((offset, 1) for offset in range(count)), count)
    for offset in range(count):
        window.done((offset,))
        assert window.committable_offset == offset + 1
    assert time.perf_counter() - started < 20
