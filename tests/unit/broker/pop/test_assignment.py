"""Assignments of queues by the broker."""

from sparrow.broker.pop.assignment import allocate_averagely, allocate_by_circle, allocate_for_pop
from sparrow.wire.bodies import QueueRef

QUEUES = [QueueRef("T", broker, number) for broker in ("a", "b") for number in range(3)]
CLIENTS = ["c1", "c2", "c3", "c4"]


def ids(queues):
    return [(queue.broker_name, queue.queue_id) for queue in queues]


def test_each_queue_to_pull_is_assigned_to_one_client():
    for share in (allocate_averagely, allocate_by_circle):
        given = [queue for client in CLIENTS for queue in share(QUEUES, CLIENTS, client)]
        assert sorted(given) == QUEUES
    assert ids(allocate_averagely(QUEUES, CLIENTS, "c1")) == [("a", 0), ("a", 1)]
    assert ids(allocate_by_circle(QUEUES, CLIENTS, "c1")) == [("a", 0), ("b", 1)]


def test_a_pop_client_gets_all_queues_of_every_broker():
    for share_with in (-1, 0, 3, 9):
        popped = allocate_for_pop(QUEUES, CLIENTS, "c2", share_with=share_with, share=allocate_averagely)
        assert ids(popped) == [("a", -1), ("b", -1)]


def test_share_with_n_assigns_each_queue_to_n_more_clients():
    popped = allocate_for_pop(QUEUES, CLIENTS, "c4", share_with=1, share=allocate_averagely)
    assert ids(popped) == [("b", 2), ("a", 0), ("a", 1)]
    owners = [
        queue
        for client in CLIENTS
        for queue in allocate_for_pop(QUEUES, CLIENTS, client, share_with=1, share=allocate_averagely)
    ]
    assert all(owners.count(queue) == 2 for queue in QUEUES)


def test_every_client_gets_a_queue_when_there_are_fewer_queues_than_clients():
    for client in CLIENTS:
        assert len(allocate_for_pop(QUEUES[:2], CLIENTS, client, share_with=1, share=allocate_averagely)) == 1


def test_a_topic_without_queues_gives_an_empty_assignment():
    assert allocate_for_pop([], CLIENTS, "c1", share_with=-1, share=allocate_averagely) == []
