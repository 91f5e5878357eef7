"""The ack floor, against a model that counts messages one by one."""

from hypothesis import given
from hypothesis import strategies as st

from sparrow.broker.pop.state import ack_floor
from sparrow.broker.pop.state.ack_floor import AckFloor
from sparrow.broker.pop.state.in_flight import InFlightBatch, InFlightTable
from sparrow.model.queue import Queue

QUEUE = Queue("t", 0)


def lot_of(start: int, mask: int, number: int = 0) -> InFlightBatch:
    return InFlightBatch("g", QUEUE, start, pop_ms=number, invisible_ms=10, mask=mask, number=number)


def test_a_queue_without_popped_messages_has_no_floor():
    assert AckFloor(1, None).floor is None


def test_messages_in_flight_hold_the_floor_until_they_are_settled():
    flying, place = InFlightTable(), AckFloor(1, 5)
    lot = lot_of(5, 0b111)
    flying.add(lot)
    place.track(lot)
    place.position = 8
    assert place.floor == 5
    flying.settle(lot, 0b010)
    assert place.floor == 5
    flying.settle(lot, 0b001)
    assert place.floor == 7
    flying.settle(lot, 0b100)
    assert place.floor == 8


def test_a_withdrawn_batch_holds_the_floor_until_it_is_stored_again():
    flying, place = InFlightTable(), AckFloor(1, 0)
    lot = lot_of(0, 0b11)
    flying.add(lot)
    place.track(lot)
    place.position = 2
    assert flying.withdraw(lot) == 0b11
    assert (len(flying), place.floor, lot.bit(0)) == (0, 0, 0)
    flying.restore(lot, 0b10)
    assert (len(flying), place.floor, lot.bit(1)) == (1, 1, 0b10)
    flying.withdraw(lot)
    flying.restore(lot, 0)
    assert (len(flying), place.floor) == (0, 2)


def test_settled_batches_do_not_accumulate_behind_an_unsettled_one():
    flying, place = InFlightTable(), AckFloor(1, 0)
    stays = lot_of(0, 1)
    flying.add(stays)
    place.track(stays)
    for number in range(1, 10 * ack_floor._SPARE_ENTRIES):
        lot = lot_of(number, 1, number)
        flying.add(lot)
        place.track(lot)
        place.position = number + 1
        flying.settle(lot, 1)
        assert place.floor == 0
    assert len(place._unsettled) <= 2 * ack_floor._SPARE_ENTRIES
    flying.settle(stays, 1)
    assert place.floor == 10 * ack_floor._SPARE_ENTRIES


steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "settle", "settle", "move", "withdraw", "stored"]),
        st.integers(0, 50),
        st.integers(1, 255),
    ),
    max_size=80,
)


@given(steps)
def test_the_floor_is_the_first_unsettled_message(steps):
    flying, place, number = InFlightTable(), AckFloor(1, 0), 0
    lots: list[InFlightBatch] = []
    position = 0
    for verb, pick, mask in steps:
        alive = [lot for lot in lots if lot.mask]
        leaving = [lot for lot in lots if lot.withdrawn]
        if verb == "take":
            number += 1
            lot = lot_of(position, mask, number)
            flying.add(lot)
            place.track(lot)
            lots.append(lot)
            position = place.position = position + mask.bit_length()
        elif verb == "settle" and alive:
            flying.settle(alive[pick % len(alive)], mask)
        elif verb == "move" and alive:
            lot = alive[pick % len(alive)]
            offset = lot.offsets()[pick % len(lot.offsets())]
            moved = flying.split_off(lot, offset, invisible_ms=5, now_ms=number)
            number += 1
            moved.number = number
            flying.add(moved)
            place.track(moved)
            flying.settle(lot, lot.bit(offset))
            lots.append(moved)
        elif verb == "withdraw" and alive:
            flying.withdraw(alive[pick % len(alive)])
        elif verb == "stored" and leaving:
            lot = leaving[pick % len(leaving)]
            flying.restore(lot, lot.withdrawn & mask)
        unsettled = {lot.start + bit for lot in lots for bit in range(16) if (lot.mask | lot.withdrawn) >> bit & 1}
        assert place.floor == min(unsettled, default=position)
