"""The limit of series: who has one, who is folded, and when there is room again."""

from sparrow.telemetry.series_limit import SeriesLimit


def test_the_first_keys_have_series_and_keep_them() -> None:
    limit: SeriesLimit[str] = SeriesLimit(2)
    assert [limit.shows(key) for key in ("a", "b", "c", "a", "c")] == [True, True, False, True, False]
    assert (limit.folded_count, limit.dropped) == (1, 1)


def test_a_folded_key_stays_folded_when_there_is_room_and_new_keys_get_it() -> None:
    limit: SeriesLimit[str] = SeriesLimit(1)
    assert limit.shows("a")
    assert not limit.shows("b")
    limit.keep(lambda key: key != "a")
    assert not limit.shows("b"), "its sum is in the folded series already"
    assert limit.shows("c")


def test_a_key_that_is_gone_may_come_back_with_a_series() -> None:
    limit: SeriesLimit[str] = SeriesLimit(1)
    limit.shows("a")
    limit.shows("b")
    limit.keep(lambda key: False)
    assert limit.folded_count == 0
    assert limit.shows("b")
    assert limit.dropped == 1
