"""Brokers come, change and go, and routes follow."""

import pytest

from sparrow.model.errors import BadRequest
from sparrow.nameserver.routes import RegistrationResult, RemovedBroker, RouteTable
from sparrow.wire import bodies
from sparrow.wire.bodies import DataVersion, QueueData, RouteData, TopicConfig, TopicTable

SILENCE_MS = 120_000


def table(*names, counter=1, state=None, perm=6, queues=4):
    """A registration's topics. Two fillers, because a lone topic means something else."""
    configs = [TopicConfig(name, queues, queues, perm) for name in (*names, "filler-1", "filler-2")]
    return TopicTable(
        topic_config_table={config.topic_name: config for config in configs},
        data_version=DataVersion(counter, 1000, state),
    )


def register(routes, name="a", number=0, *, address=None, topics=None, connection="c", now_ms=0, **others):
    return routes.register(
        **{
            "broker_name": name,
            "broker_id": number,
            "address": address or f"{name}-{number}:10911",
            "ha_address": f"{name}-{number}:10912",
            "cluster": "DefaultCluster",
            "topics": topics or table("T"),
            "acting_master": None,
            "heartbeat_timeout_ms": SILENCE_MS,
            "connection": connection,
            "now_ms": now_ms,
            **others,
        }
    )


def brokers_of(routes, topic="T"):
    route = routes.route(topic)
    return {} if route is None else {some.broker_name: some.broker_addrs for some in route.broker_datas}


def queues_of(routes, topic="T", broker_name="a"):
    (found,) = [some for some in routes.route(topic).queue_datas if some.broker_name == broker_name]
    return found


@pytest.fixture
def routes():
    return RouteTable()


def test_a_topic_nobody_registered_has_no_route(routes):
    register(routes)
    assert routes.route("unknown") is None
    assert routes.encoded_route("unknown") is None


def test_a_route_names_every_broker_that_holds_the_topic(routes):
    register(routes, "b", connection="cb")
    register(routes, "a", connection="ca")
    register(routes, "c", topics=table("other"), connection="cc")
    assert brokers_of(routes) == {"a": {0: "a-0:10911"}, "b": {0: "b-0:10911"}}
    assert queues_of(routes) == QueueData("a", 4, 4, 6, 0)


def test_a_route_goes_out_compact_with_quoted_numbers_and_without_an_order(routes):
    register(routes)
    assert routes.encoded_route("T") == (
        b'{"brokerDatas":[{"cluster":"DefaultCluster","brokerName":"a","brokerAddrs":{"0":"a-0:10911"},'
        b'"enableActingMaster":false}],"queueDatas":[{"brokerName":"a","readQueueNums":4,"writeQueueNums":4,'
        b'"perm":6,"topicSysFlag":0}],"filterServerTable":{}}'
    )


def test_an_encoded_route_is_kept_until_something_changes(routes):
    register(routes)
    first = routes.encoded_route("T")
    register(routes, now_ms=1)
    assert routes.encoded_route("T") is first
    register(routes, "b", connection="cb")
    assert routes.encoded_route("T") != first
    routes.connection_closed("cb")
    assert routes.encoded_route("T") == first


def test_an_encoded_route_is_made_again_when_the_order_changes(routes):
    register(routes)
    assert b"orderTopicConf" not in routes.encoded_route("T")
    ordered = routes.encoded_route("T", "a:4")
    assert bodies.read(RouteData, ordered).order_topic_conf == "a:4"
    assert b"orderTopicConf" not in routes.encoded_route("T")


def test_topics_change_with_the_data_version_only(routes):
    register(routes, topics=table("T", counter=1, queues=4))
    register(routes, topics=table("T", counter=1, queues=8))
    assert queues_of(routes).read_queue_nums == 4
    register(routes, topics=table("T", counter=2, queues=8))
    assert queues_of(routes).read_queue_nums == 8


def test_a_missing_state_version_is_the_same_as_the_first(routes):
    register(routes, topics=table("T", state=None, queues=4))
    register(routes, topics=table("T", state=0, queues=8))
    assert queues_of(routes).read_queue_nums == 4


def test_a_registration_adds_topics_and_takes_none_away(routes):
    register(routes, topics=table("T", counter=1))
    register(routes, topics=table("U", counter=2))
    assert routes.topics() == ["T", "U", "filler-1", "filler-2"]


def test_a_single_topic_is_an_increment_and_needs_a_known_broker(routes):
    lone = TopicTable({"T": TopicConfig("T")}, DataVersion(2, 1000))
    with pytest.raises(BadRequest, match="register all topics first"):
        register(routes, topics=lone)
    assert routes.clusters().broker_addr_table == {}
    register(routes, topics=table("U"))
    register(routes, topics=lone)
    assert brokers_of(routes, "T") == {"a": {0: "a-0:10911"}}


def test_a_4_9_slave_is_in_the_route_but_brings_no_topics(routes):
    register(routes, number=1, topics=table("S"), connection="c1")
    assert routes.topics() == []
    register(routes, number=0, connection="c0")
    assert brokers_of(routes) == {"a": {0: "a-0:10911", 1: "a-1:10911"}}


def test_a_slave_is_told_where_its_master_is_and_the_master_nothing(routes):
    assert register(routes, number=1, connection="c1") == RegistrationResult()
    assert register(routes, number=0, connection="c0") == RegistrationResult()
    assert register(routes, number=1, connection="c1") == RegistrationResult("a-0:10911", "a-0:10912")


@pytest.mark.parametrize("acting_master", [True, False])
def test_the_first_5_x_slave_brings_topics_when_there_is_no_master(routes, acting_master):
    register(routes, number=2, topics=table("T"), acting_master=acting_master, connection="c2")
    register(routes, number=3, topics=table("U"), acting_master=acting_master, connection="c3")
    assert "T" in routes.topics()
    assert "U" not in routes.topics()


def test_the_first_slave_acts_as_a_master_that_cannot_be_written_to(routes):
    for number in (0, 1, 2):
        register(routes, number=number, acting_master=True, connection=number)
    assert queues_of(routes).perm == 6
    routes.connection_closed(0)
    assert brokers_of(routes) == {"a": {0: "a-1:10911", 2: "a-2:10911"}}
    assert queues_of(routes).perm == 4
    assert routes.member_addresses("a") == {1: "a-1:10911", 2: "a-2:10911"}
    register(routes, number=0, acting_master=True, connection=9)
    assert queues_of(routes).perm == 6


def test_members_that_synchronize_see_no_acting_master(routes):
    topic = "rmq_sys_SYNC_BROKER_MEMBER_a"
    register(routes, number=1, topics=table(topic, perm=6), acting_master=True)
    assert brokers_of(routes, topic) == {"a": {1: "a-1:10911"}}
    assert queues_of(routes, topic).perm == 6


def test_without_acting_masters_a_route_keeps_the_real_numbers(routes):
    register(routes, number=1, acting_master=False)
    assert brokers_of(routes) == {"a": {1: "a-1:10911"}}
    assert queues_of(routes).perm == 6


def test_a_slave_that_becomes_master_is_there_once(routes):
    register(routes, number=0, connection="c0")
    register(routes, number=1, address="x:1", connection="c1")
    routes.connection_closed("c0")
    register(routes, number=0, address="x:1", connection="c1")
    assert brokers_of(routes) == {"a": {0: "x:1"}}
    assert routes.connection_closed("c1") == [RemovedBroker("a", 0, "x:1")]


def test_who_lost_a_number_to_a_newer_master_is_ignored(routes):
    register(routes, address="new:1", topics=table("T", state=2), connection="new")
    assert register(routes, address="old:1", topics=table("T", state=1), connection="old") == RegistrationResult()
    assert brokers_of(routes) == {"a": {0: "new:1"}}
    register(routes, address="newer:1", topics=table("T", state=2), connection="newer")
    assert brokers_of(routes) == {"a": {0: "newer:1"}}


def test_a_closed_connection_takes_all_its_brokers_along_and_nobody_else(routes):
    register(routes, "a", connection="shared")
    register(routes, "b", connection="shared")
    register(routes, "c", connection="other")
    assert {gone.broker_name for gone in routes.connection_closed("shared")} == {"a", "b"}
    assert brokers_of(routes) == {"c": {0: "c-0:10911"}}
    assert routes.connection_closed("shared") == []


def test_a_broker_on_a_new_connection_outlives_its_old_one(routes):
    register(routes, connection="old")
    register(routes, connection="new")
    assert routes.connection_closed("old") == []
    assert brokers_of(routes) == {"a": {0: "a-0:10911"}}
    assert routes.connection_closed("new") == [RemovedBroker("a", 0, "a-0:10911")]


def test_a_sign_of_life_over_a_new_connection_is_enough_to_outlive_the_old_one(routes):
    register(routes, connection="old")
    assert routes.touch("a", "a-0:10911", connection="new", now_ms=1) == DataVersion(1, 1000)
    assert routes.connection_closed("old") == []
    assert len(routes.connection_closed("new")) == 1


def test_a_broker_that_is_not_known_must_register(routes):
    register(routes)
    assert routes.touch("b", "a-0:10911", connection="c", now_ms=0) is None
    assert routes.touch("a", "elsewhere:1", connection="c", now_ms=0) is None


def test_a_broker_silent_for_longer_than_it_may_be_is_dropped(routes):
    register(routes, "a", now_ms=0, connection="ca")
    register(routes, "b", now_ms=0, heartbeat_timeout_ms=10, connection="cb")
    assert routes.expire(10) == []
    assert routes.expire(11) == [RemovedBroker("b", 0, "b-0:10911")]
    routes.touch("a", "a-0:10911", connection="ca", now_ms=100)
    assert routes.expire(SILENCE_MS + 100) == []
    assert routes.expire(SILENCE_MS + 101) == [RemovedBroker("a", 0, "a-0:10911")]
    assert routes.topics() == []


def test_topics_stay_as_long_as_one_member_does(routes):
    register(routes, number=0, connection="c0")
    register(routes, number=1, connection="c1")
    assert routes.unregister("a", "a-0:10911") == [RemovedBroker("a", 0, "a-0:10911")]
    assert brokers_of(routes) == {"a": {1: "a-1:10911"}}
    routes.unregister("a", "a-1:10911")
    assert routes.route("T") is None
    assert routes.clusters() == bodies.ClusterTable()


def test_unregistering_who_is_not_there_changes_nothing(routes):
    register(routes)
    assert routes.unregister("b", "b-0:10911") == []
    assert routes.unregister("a", "elsewhere:1") == []
    assert brokers_of(routes) == {"a": {0: "a-0:10911"}}


def test_a_group_belongs_to_the_cluster_it_registered_with_last(routes):
    register(routes, "a", cluster="one", connection="ca")
    register(routes, "b", cluster="one", connection="cb")
    assert routes.topics_of_cluster("one") == ["T", "filler-1", "filler-2"]
    register(routes, "a", cluster="two", connection="ca")
    assert routes.clusters().cluster_addr_table == {"one": ["b"], "two": ["a"]}
    register(routes, "b", cluster="two", connection="cb")
    assert routes.clusters().cluster_addr_table == {"two": ["a", "b"]}
    assert routes.topics_of_cluster("one") == []


def test_wiped_write_permissions_stay_wiped_until_the_topics_change(routes):
    register(routes, "a", connection="ca")
    register(routes, "b", connection="cb")
    routes.encoded_route("T")
    assert routes.forbid_writes("a") == 3
    assert queues_of(routes).perm == 4
    assert queues_of(routes, broker_name="b").perm == 6
    assert b'"perm":4' in routes.encoded_route("T")
    register(routes, "a", connection="ca")
    assert queues_of(routes).perm == 4
    register(routes, "a", topics=table("T", counter=2), connection="ca")
    assert queues_of(routes).perm == 6


def test_write_permissions_can_be_given_back(routes):
    register(routes)
    routes.forbid_writes("a")
    assert routes.allow_writes("a") == 3
    assert queues_of(routes).perm == 6
    assert routes.forbid_writes("unknown") == routes.allow_writes("unknown") == 0


def test_a_deleted_topic_comes_back_with_a_broker_that_still_has_it(routes):
    register(routes)
    routes.delete_topic("T")
    assert routes.route("T") is None
    register(routes)
    assert brokers_of(routes) == {"a": {0: "a-0:10911"}}


def test_a_topic_can_be_deleted_in_one_cluster(routes):
    register(routes, "a", cluster="one", connection="ca")
    register(routes, "b", cluster="two", connection="cb")
    routes.delete_topic("T", "one")
    assert brokers_of(routes) == {"b": {0: "b-0:10911"}}
    routes.delete_topic("T", "unknown")
    routes.delete_topic("unknown")
    assert brokers_of(routes) == {"b": {0: "b-0:10911"}}


def test_a_topic_is_registered_by_hand_for_known_brokers_only(routes):
    register(routes)
    queues = QueueData("a", 2, 2, 6)
    assert not routes.register_topic("U", [queues, QueueData("unknown", 2, 2, 6)])
    assert routes.route("U") is None
    assert routes.register_topic("U", [queues])
    assert queues_of(routes, "U") == queues
    routes.connection_closed("c")
    assert routes.route("U") is None
