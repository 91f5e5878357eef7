"""The queues of a topic that have grown, the newest first."""

from sparrow.broker.consume.grown_queues import GrownQueues


def test_the_queues_that_have_grown_since_a_number_come_newest_first_and_once():
    grown = GrownQueues()
    for queue_id in (1, 2, 3, 1):
        grown.add(queue_id)
    assert grown.number == 4
    assert list(grown.since(0)) == [1, 3, 2]
    assert list(grown.since(2)) == [1, 3]
    assert list(grown.since(4)) == []
