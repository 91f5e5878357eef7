import pytest

from sparrow.model.errors import Refused
from sparrow.spark.sink.driver_commit import Noted, is_over, mark_of

BOTH, ONE = mark_of(["a", "b"]), mark_of(["a"])
NOTHING = Noted(None, None, None)


def begun(number: int, mark: int) -> int:
    return number << 32 | mark


def test_sets_of_brokers_are_told_apart_and_their_order_does_not_matter():
    assert mark_of(["b", "a"]) == BOTH != ONE


def test_a_new_batch_is_not_over():
    assert not is_over([NOTHING, NOTHING], 0, BOTH)
    assert not is_over([Noted(6, begun(6, BOTH), 6)] * 2, 7, BOTH)
    assert not is_over([Noted(6, begun(6, ONE), 5)] * 2, 7, BOTH), (
        "what an earlier batch was begun with does not matter"
    )


def test_a_batch_that_reached_some_of_its_brokers_goes_on_with_the_same():
    assert not is_over([Noted(7, begun(7, BOTH), 6), Noted(6, begun(7, BOTH), 6)], 7, BOTH)


def test_a_batch_that_is_done_is_over_whoever_is_asked():
    done = Noted(7, begun(7, BOTH), 7)
    assert is_over([done, done], 7, BOTH)
    assert is_over([done], 7, ONE), "its brokers became fewer"
    assert is_over([done, NOTHING], 7, mark_of(["a", "c"]))


def test_a_batch_that_one_broker_published_alone_is_over():
    assert is_over([Noted(7, None, None)], 7, ONE)
    assert is_over([Noted(7, None, None), NOTHING], 7, BOTH), "its topic was widened since"
    assert is_over([Noted(9, None, None)], 7, ONE)


@pytest.mark.parametrize("published", [7, 6])
def test_a_batch_begun_with_other_brokers_is_refused(published: int):
    with pytest.raises(Refused, match="batch 7 was begun with other brokers"):
        is_over([Noted(published, begun(7, BOTH), 6)], 7, ONE)
