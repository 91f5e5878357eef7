"""Messages in flight, from the checkpoints and acknowledgements of Apache's revive topic."""

from typing import Any

from sparrow.replication.rocketmq.popped_messages import PoppedMessages, unacknowledged


def checkpoint(start: int, count: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return "ck", {"t": "orders", "c": "billing", "q": 1, "so": start, "pt": 7, "n": count, "bm": 0, **more}


def ack(start: int, offset: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return "ack", {"t": "orders", "c": "billing", "q": 1, "so": start, "pt": 7, "ao": offset, **more}


def in_flight(first: int, count: int) -> list[PoppedMessages]:
    return [PoppedMessages("orders", "billing", 1, first=first, count=count)]


def test_what_no_acknowledgement_names_is_in_flight() -> None:
    assert unacknowledged([checkpoint(10, 4)]) == in_flight(10, 4)
    assert unacknowledged([ack(10, 10), checkpoint(10, 4), ack(10, 12)]) == in_flight(11, 2)
    assert unacknowledged([checkpoint(10, 2), ack(10, 10), ack(10, 11)]) == []


def test_a_batch_acknowledgement_names_several() -> None:
    batch = ("bAck", {**ack(10, 0)[1], "aol": [10, 11, 13]})
    assert unacknowledged([checkpoint(10, 4), batch]) == in_flight(12, 1)


def test_offsets_of_a_checkpoint_may_have_gaps_and_bits_that_are_acknowledged() -> None:
    assert unacknowledged([checkpoint(10, 3, d=[0, 5, 9], bm=0b001)]) == in_flight(15, 2)


def test_an_acknowledgement_counts_for_its_own_pop_only() -> None:
    assert unacknowledged([checkpoint(10, 1), ack(10, 10, pt=8)]) == in_flight(10, 1)
    assert unacknowledged([checkpoint(10, 1), ack(10, 10, c="other")]) == in_flight(10, 1)


def test_several_pops_of_a_queue_are_one_entry() -> None:
    assert unacknowledged([checkpoint(10, 2), checkpoint(20, 1), ack(10, 10)]) == in_flight(11, 2)
