"""Target queues of copied messages: one for each source queue, the same one if it exists."""

import msgspec

from sparrow.client.topic_route import TopicRoute
from sparrow.spark.jobs.copy.message_copy import CopyTarget, assign_queues
from sparrow.wire.bodies import QueueRef

TARGET = CopyTarget(name_servers="127.0.0.1:9876", topic="copy", job_key="k")


def route(**queues: int) -> dict[str, TopicRoute]:
    writes = tuple(QueueRef("copy", broker, number) for broker, count in queues.items() for number in range(count))
    return {"copy": TopicRoute("copy", writes, writes, {}, {})}


def sources(**queues: int) -> list[QueueRef]:
    return [QueueRef("orders", broker, number) for broker, count in queues.items() for number in range(count)]


def test_queues_keep_their_broker_and_number_if_the_target_has_them() -> None:
    found = assign_queues(sources(a=2, b=2), route(a=2, b=3), TARGET)
    assert [found[queue] for queue in sources(a=2, b=2)] == [0, 1, 2, 3]


def test_brokers_with_other_names_are_matched_in_order() -> None:
    found = assign_queues(sources(a=1, b=1), route(x=1, y=1), TARGET)
    assert [found[queue] for queue in sources(a=1, b=1)] == [0, 1]


def test_a_target_with_fewer_queues_gets_each_source_queue_whole_and_always_in_the_same_queue() -> None:
    found = assign_queues(sources(a=8), route(a=3), TARGET)
    assert [found[queue] for queue in sources(a=3)] == [0, 1, 2]
    assert set(found.values()) <= {0, 1, 2}
    assert assign_queues(sources(a=8)[5:6], route(a=3), TARGET) == {sources(a=8)[5]: found[sources(a=8)[5]]}


def test_lanes_of_one_write_queue_go_to_the_same_target_write_queue() -> None:
    with_lanes = {"copy": msgspec.structs.replace(route(a=2)["copy"], lane_brokers=frozenset({"a"}))}
    found = assign_queues(sources(a=6), with_lanes, TARGET)
    assert [found[queue] for queue in sources(a=6)] == [0, 0, 0, 1, 1, 1]
