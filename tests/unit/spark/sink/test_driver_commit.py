import pytest

from sparrow.model.errors import Refused
from sparrow.spark.sink.driver_commit import LedgerState, broker_set_hash, is_published

BOTH, ONE = broker_set_hash(["a", "b"]), broker_set_hash(["a"])
NOTHING = LedgerState(None, None, None)


def begun(number: int, mark: int) -> int:
    return number << 32 | mark


def test_broker_sets_have_different_hashes_and_order_does_not_matter():
    assert broker_set_hash(["b", "a"]) == BOTH != ONE


def test_a_new_batch_is_not_published():
    assert not is_published([NOTHING, NOTHING], 0, BOTH)
    assert not is_published([LedgerState(6, begun(6, BOTH), 6)] * 2, 7, BOTH)
    assert not is_published([LedgerState(6, begun(6, ONE), 5)] * 2, 7, BOTH), (
        "the brokers of an earlier batch must not matter"
    )


def test_a_batch_on_some_of_its_brokers_continues_with_the_same_brokers():
    assert not is_published([LedgerState(7, begun(7, BOTH), 6), LedgerState(6, begun(7, BOTH), 6)], 7, BOTH)


def test_a_completed_batch_is_published_whichever_brokers_are_asked():
    done = LedgerState(7, begun(7, BOTH), 7)
    assert is_published([done, done], 7, BOTH)
    assert is_published([done], 7, ONE), "the topic lost brokers"
    assert is_published([done, NOTHING], 7, broker_set_hash(["a", "c"]))


def test_a_batch_that_a_single_broker_committed_is_published():
    assert is_published([LedgerState(7, None, None)], 7, ONE)
    assert is_published([LedgerState(7, None, None), NOTHING], 7, BOTH), "the topic got another broker"
    assert is_published([LedgerState(9, None, None)], 7, ONE)


@pytest.mark.parametrize("published", [7, 6])
def test_a_batch_begun_with_other_brokers_is_refused(published: int):
    with pytest.raises(Refused, match="batch 7 was begun on other brokers"):
        is_published([LedgerState(published, begun(7, BOTH), 6)], 7, ONE)
