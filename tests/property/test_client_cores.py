"""Allocations give each queue to one member; the offset window matches a naive set; queue selection never fails."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.client.consume.allocation import (
    averagely,
    averagely_by_circle,
    by_config,
    by_machine_room,
    consistent_hash,
    machine_room_nearby,
)
from sparrow.client.consume.offset_window import OffsetWindow
from sparrow.client.produce.latency_fault import LatencyFaultTolerance
from sparrow.client.produce.queue_selection import by_hash, by_sharding_key, random_choice, round_robin
from sparrow.model.message import Message
from sparrow.wire.bodies import QueueRef

broker_names = st.sampled_from(["broker-a", "broker-b", "room@c", "other@d", "room@e"])
queue_values = st.builds(QueueRef, st.just("T"), broker_names, st.integers(0, 15))
some_queues = st.lists(queue_values, unique=True, max_size=40).map(sorted)
queues_to_choose = some_queues.filter(bool)
some_clients = st.lists(st.text("0123456789.@#", min_size=1, max_size=20), unique=True, min_size=1, max_size=12).map(
    sorted
)

# -- allocation ----------------------------------------------------------------------------------


def shares(strategy, queues, clients):
    return {client: strategy("g", client, queues, clients) for client in clients}


@pytest.mark.parametrize(
    "strategy",
    [
        averagely,
        averagely_by_circle,
        consistent_hash(),
        consistent_hash(1),
        machine_room_nearby(),
        machine_room_nearby(room_of_member=lambda client_id: "room" if len(client_id) % 2 else None),
    ],
)
@given(queues=some_queues, clients=some_clients)
def test_every_queue_is_allocated_to_exactly_one_client(strategy, queues, clients):
    given_out = [queue for share in shares(strategy, queues, clients).values() for queue in share]
    assert sorted(given_out) == queues


@given(queues=some_queues, clients=some_clients)
def test_every_queue_of_the_machine_room_is_allocated_to_exactly_one_client(queues, clients):
    given_out = shares(by_machine_room(["room"]), queues, clients)
    in_room = [queue for queue in queues if queue.broker_name.startswith("room@")]
    assert sorted(queue for share in given_out.values() for queue in share) == in_room
    assert max(map(len, given_out.values())) - min(map(len, given_out.values())) <= 1


@pytest.mark.parametrize("strategy", [averagely, averagely_by_circle])
@given(queues=some_queues, clients=some_clients)
def test_average_shares_differ_by_at_most_one_and_the_first_clients_get_more(strategy, queues, clients):
    sizes = [len(share) for share in shares(strategy, queues, clients).values()]
    assert sizes[0] - sizes[-1] <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(queues=some_queues, clients=some_clients)
def test_averagely_follows_rocketmqs_formula(queues, clients):
    total, members = len(queues), len(clients)
    for index, client in enumerate(clients):
        left = total % members
        is_early = left > 0 and index < left
        size = 1 if total <= members else total // members + (1 if is_early else 0)
        start = index * size if is_early else index * size + left
        expected = [queues[start + step] for step in range(min(size, total - start))]
        assert averagely("g", client, queues, clients) == expected


@given(queues=some_queues, clients=some_clients.filter(lambda clients: len(clients) > 1), data=st.data())
def test_consistent_hash_moves_only_the_queues_of_the_client_that_leaves(queues, clients, data):
    leaver = data.draw(st.sampled_from(clients))
    staying = [client for client in clients if client != leaver]
    before = shares(consistent_hash(), queues, clients)
    after = shares(consistent_hash(), queues, staying)
    for client in staying:
        assert set(before[client]) <= set(after[client])
    assert {queue for client in staying for queue in set(after[client]) - set(before[client])} == set(before[leaver])


@given(queues=some_queues, mine=st.lists(queue_values, max_size=10), clients=some_clients)
def test_by_config_returns_the_configured_queues_that_exist_in_order(queues, mine, clients):
    assert by_config(mine)("g", clients[0], queues, clients) == sorted(set(queues) & set(mine))


# -- offset window -------------------------------------------------------------------------------


class Naive:
    """An offset window without any optimisation."""

    def __init__(self):
        self.in_hand = {}
        self.next_offset = None

    def add(self, items, next_offset):
        for offset, size in items:
            self.in_hand.setdefault(offset, size)
        self.next_offset = next_offset

    def done(self, offsets):
        for offset in offsets:
            self.in_hand.pop(offset, None)

    def restart(self, next_offset):
        self.in_hand.clear()
        self.next_offset = next_offset

    def facts(self):
        held = sorted(self.in_hand)
        return (
            held[0] if held else self.next_offset,
            len(held),
            sum(self.in_hand.values()),
            held[-1] - held[0] if held else 0,
        )


def facts(window):
    return window.committable_offset, window.count, window.bytes, window.span


offsets = st.integers(0, 60)
items = st.lists(st.tuples(offsets, st.integers(0, 100)), max_size=12, unique_by=lambda item: item[0])
steps = st.one_of(
    st.tuples(st.just("add"), items, offsets),
    st.tuples(st.just("add"), items.map(sorted), offsets),
    st.tuples(st.just("done"), st.lists(offsets, max_size=20)),
    st.tuples(st.just("restart"), offsets),
)


@given(st.lists(steps, max_size=30))
def test_the_window_agrees_with_the_naive_window_after_any_operations(history):
    window, naive = OffsetWindow(), Naive()
    for name, *arguments in history:
        getattr(window, name)(*arguments)
        getattr(naive, name)(*arguments)
        assert facts(window) == naive.facts()


@given(
    pulls=st.lists(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 100)), max_size=40), min_size=1, max_size=10),
    data=st.data(),
)
def test_the_window_agrees_with_the_naive_window_when_offsets_rise_and_complete_in_any_order(pulls, data):
    """Offsets rise with gaps, and handled offsets are reported in any order and in parts of any size."""
    window, naive = OffsetWindow(), Naive()
    offset = 0
    for pull in pulls:
        batch = []
        for gap, size in pull:
            offset += gap
            batch.append((offset, size))
        for each in (window, naive):
            each.add(batch, offset + 1)
        assert facts(window) == naive.facts()
        finished = data.draw(st.lists(st.sampled_from([0, *naive.in_hand]), unique=True))
        for each in (window, naive):
            each.done(finished)
        assert facts(window) == naive.facts()
    last = data.draw(st.permutations(list(naive.in_hand)))
    committed = window.committable_offset
    for one in last:
        window.done([one])
        assert committed <= window.committable_offset
        committed = window.committable_offset
    assert facts(window) == (offset + 1, 0, 0, 0)


# -- queue selection -----------------------------------------------------------------------------

notes = st.lists(
    st.tuples(broker_names, st.integers(0, 20_000), st.integers(0, 100_000), st.booleans()), max_size=20
).map(lambda some: sorted(some, key=lambda note: note[2]))


@given(notes, queues_to_choose, st.integers(0, 2**40), st.none() | broker_names, st.integers(0, 200_000))
def test_selection_always_returns_a_queue_and_prefers_a_usable_broker_other_than_the_last(
    history, queues, index, last, now_ms
):
    faults = LatencyFaultTolerance(brokers_max=3)
    for broker, latency_ms, at_ms, failed in history:
        faults.record(broker, latency_ms, at_ms, failed=failed)
    chosen = faults.select(queues, index, now_ms, last)
    assert chosen in queues
    brokers = {queue.broker_name for queue in queues}
    usable = {broker for broker in brokers if faults.is_usable(broker, now_ms)}
    if usable - {last}:
        assert chosen.broker_name in usable - {last}
    elif usable:
        assert chosen.broker_name in usable


@pytest.mark.parametrize("selector", [round_robin(), random_choice(), by_sharding_key(), by_hash("order-1")])
@given(queues=queues_to_choose, key=st.none() | st.text(max_size=10))
def test_a_selector_picks_one_of_the_queues(selector, queues, key):
    properties = {} if key is None else {"__SHARDINGKEY": key}
    assert selector(queues, Message(topic="T", properties=properties)) in queues


@given(queues=queues_to_choose, key=st.text(max_size=10))
def test_by_sharding_key_selects_the_queue_of_by_hash(queues, key):
    message = Message(topic="T", properties={"__SHARDINGKEY": key})
    assert by_sharding_key()(queues, message) == by_hash(key)(queues, Message(topic="T"))
