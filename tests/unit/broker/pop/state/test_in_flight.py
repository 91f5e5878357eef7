"""Batches in flight, and the end of their invisible time."""

from sparrow.broker.pop.state.in_flight import InFlightBatch, InFlightTable
from sparrow.model.queue import Queue

Q = Queue("T", 0)


def lot(start=10, count=3, *, pop_ms=1000, invisible_ms=60, number=0, group="g"):
    return InFlightBatch(
        group, Q, start, pop_ms=pop_ms, invisible_ms=invisible_ms, mask=(1 << count) - 1, number=number
    )


def test_a_batch_is_found_by_its_handle_until_its_last_message_is_settled():
    flying, one = InFlightTable(), lot()
    flying.add(one)
    assert flying.find("g", Q, 10, 1000) is one
    assert flying.find("g", Q, 10, 1001) is None
    assert flying.find("h", Q, 10, 1000) is None
    assert flying.settle(one, 0b101) == 0b101
    assert (one.offsets(), one.bit(10), one.bit(11)) == ([11], 0, 0b10)
    assert flying.settle(one, 0b111) == 0b10
    assert flying.find("g", Q, 10, 1000) is None
    assert len(flying) == 0


def test_offsets_outside_a_batch_have_no_bit():
    assert [lot().bit(offset) for offset in (-5, 9, 13, 1 << 40)] == [0, 0, 0, 0]


def test_batches_are_due_once_and_in_the_order_of_their_times():
    flying = InFlightTable()
    late, soon = lot(invisible_ms=100, number=0), lot(20, invisible_ms=50, number=1)
    flying.add(late)
    flying.add(soon)
    assert flying.next_due_ms() == 1050
    assert flying.due(1049, 10) == []
    assert flying.due(1050, 10) == [soon]
    assert flying.due(9999, 10) == [late]
    assert flying.due(9999, 10) == []
    assert flying.find("g", Q, 20, 1000) is soon, "a due batch must stay in flight until it is settled"


def test_due_returns_at_most_the_requested_number_of_batches():
    flying = InFlightTable()
    for number in range(5):
        flying.add(lot(number * 10, number=number))
    assert len(flying.due(9999, 3)) == 3
    assert len(flying.due(9999, 3)) == 2


def test_a_settled_batch_is_never_due():
    flying, one = InFlightTable(), lot()
    flying.add(one)
    flying.settle(one, one.mask)
    assert flying.next_due_ms() is None
    assert flying.due(9999, 10) == []


def test_a_batch_that_could_not_be_revived_is_due_later():
    flying, one = InFlightTable(), lot()
    flying.add(one)
    assert flying.due(1060, 10) == [one]
    flying.postpone(one, 2000)
    assert flying.due(1999, 10) == []
    assert flying.find("g", Q, 10, 1000) is one
    assert flying.due(2000, 10) == [one]
    flying.settle(one, one.mask)
    flying.postpone(one, 3000)
    assert flying.next_due_ms() is None, "a settled message must not be postponed"


def test_a_journal_record_can_replace_a_batch():
    flying, one, other = InFlightTable(), lot(number=3), lot(20, number=4)
    flying.add(one)
    flying.add(other)
    flying.renumber(one, 9)
    assert (flying.oldest(), flying.find_by_number(3), flying.find_by_number(9)) == (4, None, one)
    assert flying.before(9) == [other]
    again = lot(count=1, number=12)  # as read at a start: the same handle with fewer messages
    flying.add(again)
    assert (flying.find_by_number(9), flying.find("g", Q, 10, 1000)) == (None, again)
    assert flying.due(9999, 10) == [other, again]


def test_settled_batches_take_no_memory():
    flying = InFlightTable()
    for number in range(20_000):
        each = lot(number, 1, invisible_ms=10**9, number=number)
        flying.add(each)
        flying.settle(each, 1)
    assert len(flying._dues) < 2_000
