"""FIFO pops: queues that are popped in order."""

from sparrow.broker.pop.state.fifo import FifoTable
from sparrow.model.queue import Queue

Q = Queue("T", 0)


def take(order, offsets=(5, 6, 7), *, pop_ms=1000, invisible_ms=60, attempt=None, next_offset=None):
    return order.take(
        "g",
        Q,
        offsets,
        next_offset=next_offset or offsets[-1] + 1,
        pop_ms=pop_ms,
        invisible_ms=invisible_ms,
        attempt=attempt,
    )


def test_a_queue_is_blocked_until_all_messages_are_acknowledged():
    order = FifoTable()
    run = take(order)
    for offset, committed in ((6, 5), (5, 7), (7, 8)):
        assert order.is_blocked("g", Q, 1000)
        assert order.ack(run, offset)
        assert run.committed == committed
    assert not order.is_blocked("g", Q, 1000)
    assert order.of("g", Q) is None
    assert not order.ack(run, 5), "a second ack must have no effect"


def test_only_the_group_and_queue_of_the_pop_are_blocked():
    order = FifoTable()
    take(order)
    assert not order.is_blocked("h", Q, 1000)
    assert not order.is_blocked("g", Queue("T", 1), 1000)


def test_a_queue_reopens_when_the_invisible_time_of_all_messages_is_over():
    order = FifoTable()
    run = take(order)
    assert order.change(run, 6, 2000)
    assert order.is_blocked("g", Q, 1999)
    assert not order.is_blocked("g", Q, 2000)
    order.ack(run, 6)
    assert not order.is_blocked("g", Q, 1060)
    assert not order.change(run, 6, 3000), "it is acknowledged"


def test_a_redelivered_message_counts_its_deliveries():
    order = FifoTable()
    order.ack(take(order), 5)
    again = take(order, (6, 7, 8), pop_ms=2000)
    assert again.counts == {6: 1, 7: 1, 8: 0}
    third = take(order, (6, 7), pop_ms=3000)
    assert third.counts == {6: 2, 7: 2}


def test_a_repeated_attempt_is_neither_blocked_nor_counted():
    order = FifoTable()
    take(order, attempt="a")
    assert order.is_blocked("g", Q, 1000)
    assert order.is_blocked("g", Q, 1000, "b")
    assert not order.is_blocked("g", Q, 1000, "a")
    assert take(order, attempt="a").counts == {5: 0, 6: 0, 7: 0}


def test_the_committed_offset_skips_messages_that_the_filter_excluded():
    order = FifoTable()
    run = take(order, (5, 9), next_offset=20)
    order.ack(run, 5)
    assert run.committed == 9
    order.ack(run, 9)
    assert run.committed == 20


def test_a_queue_is_reported_once_when_its_invisible_time_is_over():
    order = FifoTable()
    take(order)
    assert (order.next_reopen_ms(), order.reopened_queues(1059)) == (1060, [])
    assert order.reopened_queues(1060) == [Q]
    assert order.next_reopen_ms() is None
