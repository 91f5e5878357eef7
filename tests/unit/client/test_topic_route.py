"""The queues and addresses that a client derives from route data of a name server."""

import pytest

from sparrow.client.topic_route import QUEUES_PER_BROKER_MAX, TopicRoute
from sparrow.model.errors import ProtocolError
from sparrow.model.priority import LANES_SYS_FLAG, Priority
from sparrow.wire.bodies import BrokerData, QueueData, QueueRef, RouteData


def broker(name, **members):
    return BrokerData("c", name, {int(number[1:]): address for number, address in members.items()})


def queues(name, reads=2, writes=2, perm=6):
    return QueueData(name, reads, writes, perm)


def names(some):
    return [(queue.broker_name, queue.queue_id) for queue in some]


TWO_BROKERS = RouteData(
    broker_datas=[broker("b", m0="b0:1", m1="b1:1"), broker("a", m0="a0:1")],
    queue_datas=[queues("b", reads=1, writes=2), queues("a", reads=3, writes=1)],
)


def test_write_and_read_queues_are_listed_in_order():
    route = TopicRoute.of("T", TWO_BROKERS)
    assert route.write_queues == (QueueRef("T", "a", 0), QueueRef("T", "b", 0), QueueRef("T", "b", 1))
    assert names(route.read_queues) == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]
    assert route.masters == {"a": "a0:1", "b": "b0:1"}
    assert route.addresses == {"a": {0: "a0:1"}, "b": {0: "b0:1", 1: "b1:1"}}


def test_queues_are_sorted_by_number_and_not_by_text():
    route = TopicRoute.of("T", RouteData([broker("a", m0="x:1")], [queues("a", reads=11, writes=11)]))
    assert [queue.queue_id for queue in route.write_queues] == list(range(11))
    assert [queue.queue_id for queue in route.read_queues] == list(range(11))


def test_a_broker_without_a_master_is_readable_but_not_writable():
    route = TopicRoute.of("T", RouteData([broker("a", m1="a1:1", m2="a2:1")], [queues("a")]))
    assert route.write_queues == ()
    assert names(route.read_queues) == [("a", 0), ("a", 1)]
    assert route.masters == {}


def test_queues_of_a_broker_without_addresses_are_not_writable():
    route = TopicRoute.of("T", RouteData([], [queues("a")]))
    assert route.write_queues == ()
    assert route.address_of("a") is None


@pytest.mark.parametrize(("perm", "writes", "reads"), [(6, 2, 2), (4, 0, 2), (2, 2, 0), (1, 0, 0), (7, 2, 2)])
def test_permissions_select_write_and_read_queues(perm, writes, reads):
    route = TopicRoute.of("T", RouteData([broker("a", m0="a0:1")], [queues("a", perm=perm)]))
    assert (len(route.write_queues), len(route.read_queues)) == (writes, reads)


def test_a_broker_listed_twice_counts_once():
    route = TopicRoute.of("T", RouteData([broker("a", m0="a0:1"), broker("a", m1="a1:1")], [queues("a"), queues("a")]))
    assert names(route.write_queues) == names(route.read_queues) == [("a", 0), ("a", 1)]
    assert route.addresses == {"a": {0: "a0:1", 1: "a1:1"}}


def test_the_order_configuration_of_a_topic_affects_write_queues_only():
    # Java keeps the order of the text, and hashes of keys index into that order.
    ordered = RouteData(TWO_BROKERS.broker_datas, TWO_BROKERS.queue_datas, order_topic_conf="b:1;a:2;gone:1")
    route = TopicRoute.of("T", ordered)
    assert names(route.write_queues) == [("b", 0), ("a", 0), ("a", 1), ("gone", 0)]
    assert route.read_queues == TopicRoute.of("T", TWO_BROKERS).read_queues


def test_an_empty_order_configuration_is_ignored():
    assert TopicRoute.of(
        "T", RouteData(TWO_BROKERS.broker_datas, TWO_BROKERS.queue_datas, order_topic_conf="")
    ) == TopicRoute.of("T", TWO_BROKERS)


@pytest.mark.parametrize("conf", ["a", "a:", "a:x", "a:-1", "a:1:2", "a:²", f"a:{QUEUES_PER_BROKER_MAX + 1}"])
def test_an_invalid_order_configuration_is_a_protocol_error(conf):
    with pytest.raises(ProtocolError):
        TopicRoute.of("T", RouteData(order_topic_conf=conf))


def test_a_route_with_too_many_queues_is_refused():
    with pytest.raises(ProtocolError, match="2147483647 queues on 'a'"):
        TopicRoute.of("T", RouteData([broker("a", m0="a0:1")], [queues("a", writes=2**31 - 1)]))


def test_a_new_topic_inherits_brokers_and_a_limited_number_of_queues():
    template = RouteData(
        [broker("a", m0="a0:1"), broker("b", m0="b0:1")],
        [queues("a", reads=8, writes=16, perm=7), queues("b", reads=2, writes=8, perm=7)],
        order_topic_conf="a:9",  # applies to the template topic only
    )
    route = TopicRoute.inherited("new", template, 4)
    assert {queue.topic for queue in route.write_queues} == {"new"}
    assert names(route.write_queues) == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0), ("b", 1)]
    assert route.read_queues == route.write_queues
    assert route.masters == {"a": "a0:1", "b": "b0:1"}


def test_a_reader_falls_back_to_another_member_of_the_broker():
    route = TopicRoute.of("T", RouteData([broker("a", m0="a0:1", m2="a2:1"), broker("b", m3="b3:1", m1="b1:1")]))
    assert route.address_of("a") == "a0:1"
    assert route.address_of("a", 2) == "a2:1"
    assert route.address_of("a", 1) == "a0:1"
    assert route.address_of("b") == "b1:1"
    assert route.address_of("c") is None


def test_routes_are_equal_exactly_if_nothing_changed():
    shuffled = RouteData(TWO_BROKERS.broker_datas[::-1], TWO_BROKERS.queue_datas[::-1])
    assert TopicRoute.of("T", shuffled) == TopicRoute.of("T", TWO_BROKERS)
    moved = RouteData([broker("a", m0="elsewhere:1"), TWO_BROKERS.broker_datas[0]], TWO_BROKERS.queue_datas)
    assert TopicRoute.of("T", moved) != TopicRoute.of("T", TWO_BROKERS)


def test_a_read_queue_of_a_topic_with_lanes_has_its_lane():
    with_lanes = QueueData("a", read_queue_nums=6, write_queue_nums=2, perm=6, topic_sys_flag=LANES_SYS_FLAG | 1)
    route = TopicRoute.of("T", RouteData([broker("a", m0="a:1"), broker("b", m0="b:1")], [with_lanes, queues("b")]))
    assert names(route.write_queues) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    lanes = [route.lane_of(queue) for queue in route.read_queues]
    assert lanes == [*Priority, *Priority, None, None]


def test_routes_with_and_without_lanes_differ():
    plain, laned = (
        TopicRoute.of("T", RouteData([broker("a", m0="a:1")], [QueueData("a", 3, 3, 6, flag)]))
        for flag in (0, LANES_SYS_FLAG)
    )
    assert plain != laned
