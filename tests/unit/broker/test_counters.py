"""Traffic counters: rates and sums. Time is an argument, so that tests need not wait."""

import time

import pytest

from sparrow.broker.counters import SAMPLE_INTERVAL_MS, MidnightTotals, Totals, TrafficCounters

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
NOON = 1_700_000_000_000 - 1_700_000_000_000 % DAY + DAY // 2


def sent(totals: Totals) -> int:
    return totals.messages_sent


@pytest.fixture
def counters() -> TrafficCounters:
    """The counters of a broker that has just started."""
    fresh = TrafficCounters()
    fresh.tick(NOON)
    return fresh


def test_totals_add_up_over_topics_and_groups(counters):
    counters.count_send("a", 3, 300)
    counters.count_send("b", 1, 50)
    counters.count_pull("g", "a", 2, 200)
    counters.count_pull("h", "a", 1, 100)
    counters.count_empty_pull("g", "b")
    assert counters.totals == Totals(
        messages_sent=4,
        bytes_sent=350,
        sends=2,
        messages_pulled=3,
        bytes_pulled=300,
        pulls_found=2,
        pulls_missed=1,
    )


def test_without_messages_rates_are_zero_and_there_is_no_traffic(counters):
    assert counters.rates(NOON, sent) == (0.0, 0.0, 0.0)
    assert counters.rates(NOON + MINUTE, sent) == (0.0, 0.0, 0.0)
    assert counters.topic_traffic("a", NOON) is None
    assert counters.group_traffic("g", "a", NOON) is None
    assert counters.send_back_traffic("g", "a", NOON) is None


def test_counters_can_be_read_before_the_first_tick():
    fresh = TrafficCounters()
    fresh.count_send("a", 5, 10)
    assert fresh.rates(NOON, sent) == (0.0, 0.0, 0.0)
    assert fresh.topic_traffic("a", NOON).messages.minute.sum == 5
    assert fresh.rates(NOON + 5_000, lambda totals: totals.sends) == (0.0, 0.0, 0.0)


def test_a_steady_stream_has_the_same_rate_in_every_window(counters):
    now_ms = NOON
    for _ in range(100):
        counters.count_send("a", 50, 5_000)
        now_ms += SAMPLE_INTERVAL_MS
        counters.tick(now_ms)
    assert counters.rates(now_ms, sent) == pytest.approx((5.0, 5.0, 5.0))
    minute, hour, day = counters.topic_traffic("a", now_ms).messages
    assert (minute.rate, hour.rate, day.rate) == pytest.approx((5.0, 5.0, 5.0), rel=0.2)
    assert minute.sum == 300


def test_a_burst_leaves_the_short_window_first(counters):
    counters.count_send("a", 600, 600)
    now_ms = NOON
    while now_ms < NOON + 2 * MINUTE:
        now_ms += SAMPLE_INTERVAL_MS
        counters.tick(now_ms)
        if now_ms == NOON + SAMPLE_INTERVAL_MS:
            assert counters.rates(now_ms, sent) == (60.0, 60.0, 60.0)
    short, minute, long = counters.rates(now_ms, sent)
    assert (short, minute) == (0.0, 0.0)
    assert long == pytest.approx(5.0)  # 600 in the first two minutes


def test_rates_change_between_ticks(counters):
    counters.count_send("a", 10, 10)
    assert counters.rates(NOON + 5_000, sent) == (2.0, 2.0, 2.0)


def test_more_frequent_ticks_do_not_change_rates():
    rare, often = TrafficCounters(), TrafficCounters()
    rare.tick(NOON)
    often.tick(NOON)
    for step in range(1, 121):
        now_ms = NOON + step * 1_000
        for counters in (rare, often):
            counters.count_send("a", step, 7)
        often.tick(now_ms)
        if step % 10 == 0:
            rare.tick(now_ms)
    assert rare.rates(now_ms, sent) == often.rates(now_ms, sent)
    assert rare.topic_traffic("a", now_ms).messages.hour == often.topic_traffic("a", now_ms).messages.hour


def test_minute_hour_and_day_sums_drop_old_samples_in_that_order(counters):
    counters.count_send("a", 7, 70)
    counters.tick(NOON + SAMPLE_INTERVAL_MS)

    def sums(now_ms: int) -> list[int]:
        return [figure.sum for figure in counters.topic_traffic("a", now_ms).messages]

    assert sums(NOON + SAMPLE_INTERVAL_MS) == [7, 7, 7]
    assert sums(NOON + 2 * MINUTE) == [0, 7, 7]
    assert sums(NOON + 2 * HOUR) == [0, 0, 7]


def test_an_average_is_per_request(counters):
    counters.count_send("a", 1, 100)
    counters.count_send("a", 9, 900)
    traffic = counters.topic_traffic("a", NOON + SAMPLE_INTERVAL_MS)
    assert (traffic.messages.minute.average, traffic.bytes.minute.average) == (5.0, 500.0)
    assert (traffic.messages.minute.rate, traffic.bytes.minute.rate) == (1.0, 100.0)


def test_a_message_shortly_after_a_tick_does_not_inflate_the_rate(counters):
    counters.count_send("a", 10, 10)
    assert counters.topic_traffic("a", NOON + 1).messages.minute.rate == 1.0


def test_traffic_is_counted_per_group_and_topic(counters):
    counters.count_pull("g", "a", 1, 10)
    counters.count_pull("h", "a", 2, 20)
    counters.count_pull("g", "b", 4, 40)
    counters.count_send_back("g", "a", 3)
    counters.count_send_back("g", "a")
    assert counters.group_traffic("g", "a", NOON).messages.minute.sum == 1
    assert counters.group_traffic("h", "a", NOON).bytes.minute.sum == 20
    assert counters.group_traffic("g", "b", NOON).messages.minute.sum == 4
    assert counters.group_traffic("h", "b", NOON) is None
    assert counters.send_back_traffic("g", "a", NOON).messages.minute.sum == 4


def test_a_topic_idle_for_a_day_is_dropped_and_the_totals_stay(counters):
    counters.count_send("idle", 5, 50)
    counters.count_pull("g", "idle", 5, 50)
    counters.tick(NOON)
    for hours in range(1, 25):
        counters.count_send("busy", 1, 1)
        counters.tick(NOON + hours * HOUR)
    assert counters.topic_traffic("idle", NOON + DAY) is None
    assert counters.group_traffic("g", "idle", NOON + DAY) is None
    assert counters.topic_traffic("busy", NOON + DAY).messages.day.sum == 24
    assert (counters.totals.messages_sent, counters.totals.messages_pulled) == (29, 5)


def test_removing_a_topic_or_a_group_keeps_the_totals(counters):
    for topic in ("a", "b"):
        counters.count_send(topic, 1, 1)
        for group in ("g", "h"):
            counters.count_pull(group, topic, 1, 1)
            counters.count_send_back(group, topic)
    before = counters.totals
    counters.forget_topic("a")
    counters.forget_group("g")
    assert counters.totals == before
    gone = [
        counters.topic_traffic("a", NOON),
        counters.group_traffic("h", "a", NOON),
        counters.send_back_traffic("h", "a", NOON),
    ]
    gone += [counters.group_traffic("g", "b", NOON), counters.send_back_traffic("g", "b", NOON)]
    assert gone == [None] * 5
    assert counters.topic_traffic("b", NOON) is not None
    assert counters.group_traffic("h", "b", NOON) is not None


def test_a_topic_created_again_counts_from_zero(counters):
    counters.count_send("a", 5, 5)
    counters.tick(NOON + SAMPLE_INTERVAL_MS)
    counters.forget_topic("a")
    counters.count_send("a", 2, 2)
    assert counters.topic_traffic("a", NOON + 2 * SAMPLE_INTERVAL_MS).messages.day.sum == 2
    assert counters.totals.messages_sent == 7


def test_midnight_totals_are_the_totals_at_the_last_two_midnights(counters):
    at = time.localtime(NOON / 1000)
    midnight_ms = round(time.mktime((*at[:3], 0, 0, 0, 0, 0, -1)) * 1000)
    counters.count_send("a", 1, 1)
    counters.tick(midnight_ms + DAY - SAMPLE_INTERVAL_MS)
    assert counters.midnight_totals == MidnightTotals()
    counters.tick(midnight_ms + DAY)
    counters.count_send("a", 10, 1)
    counters.tick(midnight_ms + DAY + HOUR)
    assert [totals.messages_sent for totals in counters.midnight_totals] == [0, 1]
    counters.tick(midnight_ms + 2 * DAY)
    assert [totals.messages_sent for totals in counters.midnight_totals] == [1, 11]


def test_a_clock_set_back_keeps_rates_non_negative(counters):
    counters.count_send("a", 1, 1)
    counters.tick(NOON + HOUR)
    counters.count_send("a", 1, 1)
    counters.tick(NOON - HOUR)
    assert all(rate >= 0 for rate in counters.rates(NOON - HOUR, sent))
    assert counters.topic_traffic("a", NOON - HOUR).messages.day.rate >= 0
    assert counters.totals.messages_sent == 2
    counters.count_send("a", 20, 20)
    assert counters.rates(NOON - HOUR + SAMPLE_INTERVAL_MS, sent) == (2.0, 2.0, 2.0)
