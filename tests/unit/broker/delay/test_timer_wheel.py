"""The timer wheel. `tests/property/test_timer_wheel.py` compares it with a list; here are the remaining cases."""

import tracemalloc

import numpy as np
import pytest
from tests.support.cases import each_case

from sparrow.broker.delay.timer_wheel import BUCKET_WIDTHS_MS, TimerWheel

NOW_MS = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000


def taken(timers, now_ms, count_max=1_000_000):
    return timers.take(now_ms, count_max)[1].tolist()


def test_no_timer_is_due_before_its_time():
    timers = TimerWheel()
    timers.add(NOW_MS + 1, 7)
    assert taken(timers, NOW_MS) == []
    assert taken(timers, NOW_MS + 1) == [7]
    assert timers.count == 0
    assert timers.next_due_ms(NOW_MS + 1) is None


def test_timers_of_equal_time_are_due_in_the_order_they_were_added():
    timers = TimerWheel()
    due_ms = NOW_MS + 90_000
    timers.add(due_ms, 1)
    timers.add_many(np.array([due_ms, due_ms]), np.array([2, 3]))
    taken(timers, due_ms - 30_000)  # moves the timer to a bucket of its minute
    timers.add(due_ms, 4)
    taken(timers, due_ms - 1)  # moves it to a bucket of its second
    timers.add(due_ms, 5)
    assert taken(timers, due_ms) == [1, 2, 3, 4, 5]


def test_restored_timers_are_taken_first():
    timers = TimerWheel()
    for number in range(5):
        timers.add(NOW_MS, number)
    due, references = timers.take(NOW_MS, 3)
    timers.restore(due[1:], references[1:])
    timers.add(NOW_MS, 9)
    assert taken(timers, NOW_MS) == [1, 2, 3, 4, 9]


@each_case("delay_ms", [0, 1, 999, *BUCKET_WIDTHS_MS, *(width - 1 for width in BUCKET_WIDTHS_MS), 10 * YEAR_MS])
def test_next_due_time_is_never_later_than_the_first_timer(delay_ms):
    timers = TimerWheel()
    timers.next_due_ms(NOW_MS)
    timers.add(NOW_MS + delay_ms, 1)
    now_ms, looks = NOW_MS, 0
    while not (found := taken(timers, now_ms)):
        next_ms = timers.next_due_ms(now_ms)
        assert now_ms < next_ms <= NOW_MS + delay_ms
        now_ms, looks = next_ms, looks + 1
    assert found == [1]
    assert now_ms == NOW_MS + delay_ms
    assert looks <= len(BUCKET_WIDTHS_MS) + 1


@pytest.mark.parametrize("span_ms", [1, 60_000, 3 * 86_400_000, 10 * YEAR_MS])
def test_a_million_timers_take_few_bytes_each_in_every_bucket(span_ms, scale):
    count = 1_000_000 if scale == "full" else 30_000
    due_ms = NOW_MS + 2_000 + np.random.default_rng(1).integers(0, span_ms, count)
    timers = TimerWheel()
    timers.next_due_ms(NOW_MS)
    tracemalloc.start()
    for reference, due in enumerate(due_ms.tolist()):
        timers.add(due, reference)
    timers.next_due_ms(int(due_ms.min()))  # splits the bucket of the first timer
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert timers.count == count
    assert held < 40 * count + (1 << 20)


def test_dropped_timers_are_removed_from_every_bucket():
    timers = TimerWheel()
    timers.next_due_ms(NOW_MS)
    for reference, delay_ms in enumerate((0, 1, 1_500, 70_000, 3_700_000, 90_000_000, 90_000_001)):
        timers.add(NOW_MS + delay_ms, reference)
    timers.drop(np.array([1, 2, 3, 4, 5, 99]))
    assert timers.count == 2
    assert timers.all_timers()[1].tolist() == [6, 0]
    assert taken(timers, NOW_MS + YEAR_MS) == [0, 6]


def test_timers_after_a_position_are_those_of_the_list():
    """At any time, wherever the timers are in the wheel, and however many have one time."""
    random = np.random.default_rng(7)
    timers = TimerWheel()
    expected: list[tuple[int, int]] = []
    spans_ms = (10, 3_000, 400_000, 20_000_000, 3 * 86_400_000)
    for number in range(2_000):
        due_ms = NOW_MS + int(random.integers(spans_ms[number % len(spans_ms)]))
        timers.add(due_ms, number)
        expected.append((due_ms, number))
    expected.sort()
    for now_ms in (NOW_MS - 1, NOW_MS, NOW_MS + 5, NOW_MS + 1_500, NOW_MS + 70_000, NOW_MS + 5_000_000):
        taken(timers, now_ms)
        waiting = [timer for timer in expected if timer[0] > now_ms]
        for after in [(0, -1), *(waiting[index] for index in range(0, len(waiting), 97))]:
            rest = [timer for timer in waiting if timer > after]
            for count in (1, 50, 5_000):
                due, references = timers.timers_after(*after, count)
                found = sorted(zip(due.tolist(), references.tolist(), strict=True))
                assert found[:count] == rest[:count]
