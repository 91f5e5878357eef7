"""Allocation of queues. The expected queues are results of RocketMQ 4.9.7; 5.5.0 gives the same."""

import pytest

from sparrow.client.consume.allocation import (
    STRATEGIES_BY_NAME,
    averagely,
    averagely_by_circle,
    by_config,
    by_machine_room,
    consistent_hash,
    machine_room_nearby,
)
from sparrow.wire.bodies import QueueRef

QUEUES = [QueueRef("orders", broker, number) for broker in ("broker-a", "broker-b") for number in range(4)]
CLIENTS = ["10.0.0.1@100", "10.0.0.2@200", "10.0.0.3@300"]


def short(queues):
    return " ".join(f"{queue.broker_name[-1]}{queue.queue_id}" for queue in queues)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (averagely, ["a0 a1 a2", "a3 b0 b1", "b2 b3"]),
        (averagely_by_circle, ["a0 a3 b2", "a1 b0 b3", "a2 b1"]),
        (consistent_hash(), ["a1 a2 a3 b2", "a0", "b0 b1 b3"]),
        (consistent_hash(1), ["a2 a3", "a0", "a1 b0 b1 b2 b3"]),
    ],
)
def test_queues_are_allocated_as_in_java(strategy, expected):
    assert [short(strategy("g", client, QUEUES, CLIENTS)) for client in CLIENTS] == expected


def test_by_machine_room_allocates_the_queues_of_its_rooms_as_in_java():
    rooms = [QueueRef("T", name, number) for name in ("east@a", "east@b", "plain", "west@a") for number in range(4)]
    strategy = by_machine_room(["east"])
    expected = ["a0 a1 b2", "a2 a3 b3", "b0 b1"]
    assert [short(strategy("g", client, rooms, CLIENTS)) for client in CLIENTS] == expected


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        # As Java's AllocateMachineRoomNearby with AllocateMessageQueueAveragely computes it. Java has no answer for
        # queues without a room (p); here all members share them.
        (["1@east@1", "2@west@1"], ["e0 e1 e2 e3 p0 p1", "p2 p3 w0 w1 w2 w3"]),
        (["1@east@1", "2@east@2", "3@west@1"], ["e0 e1 p0 p1", "e2 e3 p2", "p3 w0 w1 w2 w3"]),
        (["1@east@1", "2@east@2"], ["e0 e1 p0 p1 w0 w1", "e2 e3 p2 p3 w2 w3"]),
        (["1@north@1", "2@plain"], ["e0 e1 p0 p1 w0 w1", "e2 e3 p2 p3 w2 w3"]),
        (["1@plain", "2@west@1"], ["e0 e1 p0 p1", "e2 e3 p2 p3 w0 w1 w2 w3"]),
    ],
)
def test_machine_room_nearby_shares_the_queues_of_a_room_among_its_members(clients, expected):
    queues = [QueueRef("T", name, number) for name in ("east@a", "plain", "west@a") for number in range(4)]
    shares = [machine_room_nearby()("g", client, queues, clients) for client in clients]
    assert [" ".join(f"{queue.broker_name[0]}{queue.queue_id}" for queue in share) for share in shares] == expected


def test_machine_room_nearby_takes_a_function_for_the_rooms_of_members():
    queues = [QueueRef("T", name, 0) for name in ("east@a", "west@a")]
    strategy = machine_room_nearby(averagely_by_circle, room_of_member=lambda client_id: client_id.split("-")[0])
    clients = ["east-1", "west-1"]
    assert [strategy("g", client, queues, clients) for client in clients] == [queues[:1], queues[1:]]


@pytest.mark.parametrize(("name", "is_read"), [("r@a", True), ("r@a@", True), ("r@a@b", False), ("r@", False)])
def test_the_machine_room_is_the_part_of_a_broker_name_before_the_at_sign(name, is_read):
    queue = QueueRef("T", name, 0)
    assert by_machine_room(["r"])("g", "c", [queue], ["c"]) == [queue] * is_read


def test_with_more_clients_than_queues_the_last_clients_get_none():
    shares = [averagely("g", client, QUEUES[:2], CLIENTS) for client in CLIENTS]
    assert shares == [[QUEUES[0]], [QUEUES[1]], []]


def test_configured_queues_are_read_if_they_exist():
    strategy = by_config([QueueRef("orders", "broker-z", 0), QUEUES[5], QUEUES[1]])
    assert strategy("g", CLIENTS[0], QUEUES, CLIENTS) == [QUEUES[1], QUEUES[5]]


@pytest.mark.parametrize(
    "strategy", [averagely, averagely_by_circle, consistent_hash(), by_config(QUEUES), by_machine_room(["east"])]
)
def test_a_client_that_is_not_a_member_gets_no_queues(strategy):
    assert strategy("g", "stranger", QUEUES, CLIENTS) == []
    assert strategy("g", "stranger", QUEUES, []) == []
    assert strategy("g", CLIENTS[0], [], CLIENTS) == []


def test_strategies_have_the_names_of_rocketmq():
    assert STRATEGIES_BY_NAME["AVG"] is averagely
    assert STRATEGIES_BY_NAME["AVG_BY_CIRCLE"] is averagely_by_circle
    ringed = STRATEGIES_BY_NAME["CONSISTENT_HASH"]("g", CLIENTS[0], QUEUES, CLIENTS)
    assert ringed == consistent_hash()("g", CLIENTS[0], QUEUES, CLIENTS)
