"""Routes: brokers register, change and disconnect, and routes follow."""

import pytest

from sparrow.model.errors import BadRequest
from sparrow.nameserver.routes import RegistrationResult, RemovedBroker, RouteTable
from sparrow.wire import bodies
from sparrow.wire.bodies import DataVersion, QueueData, RouteData, TopicConfig, TopicTable

SILENCE_MS = 120_000


def table(*names, counter=1, state=None, perm=6, queues=4):
    """The topics of a registration, with two fillers, because a single topic is an incremental registration."""
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


def test_an_unregistered_topic_has_no_route(routes):
    register(routes)
    assert routes.route("unknown") is None
    assert routes.encoded_route("unknown") is None


def test_a_route_lists_every_broker_of_the_topic(routes):
    register(routes, "b", connection="cb")
    register(routes, "a", connection="ca")
    register(routes, "c", topics=table("other"), connection="cc")
    assert brokers_of(routes) == {"a": {0: "a-0:10911"}, "b": {0: "b-0:10911"}}
    assert queues_of(routes) == QueueData("a", 4, 4, 6, 0)


def test_a_route_is_compact_json_with_quoted_numbers_and_without_an_order(routes):
    register(routes)
    assert routes.encoded_route("T") == (
        b'{"brokerDatas":[{"cluster":"DefaultCluster","brokerName":"a","brokerAddrs":{"0":"a-0:10911"},'
        b'"enableActingMaster":false}],"queueDatas":[{"brokerName":"a","readQueueNums":4,"writeQueueNums":4,'
        b'"perm":6,"topicSysFlag":0}],"filterServerTable":{}}'
    )


def test_an_encoded_route_is_cached_until_something_changes(routes):
    register(routes)
    first = routes.encoded_route("T")
    register(routes, now_ms=1)
    assert routes.encoded_route("T") is first
    register(routes, "b", connection="cb")
    assert routes.encoded_route("T") != first
    routes.connection_closed("cb")
    assert routes.encoded_route("T") == first


def test_an_encoded_route_is_rebuilt_when_the_order_changes(routes):
    register(routes)
    assert b"orderTopicConf" not in routes.encoded_route("T")
    ordered = routes.encoded_route("T", "a:4")
    assert bodies.read(RouteData, ordered).order_topic_conf == "a:4"
    assert b"orderTopicConf" not in routes.encoded_route("T")


def test_topics_change_only_with_the_data_version(routes):
    register(routes, topics=table("T", counter=1, queues=4))
    register(routes, topics=table("T", counter=1, queues=8))
    assert queues_of(routes).read_queue_nums == 4
    register(routes, topics=table("T", counter=2, queues=8))
    assert queues_of(routes).read_queue_nums == 8


def test_a_missing_state_version_equals_zero(routes):
    register(routes, topics=table("T", state=None, queues=4))
    register(routes, topics=table("T", state=0, queues=8))
    assert queues_of(routes).read_queue_nums == 4


def test_a_registration_adds_topics_and_removes_none(routes):
    register(routes, topics=table("T", counter=1))
    register(routes, topics=table("U", counter=2))
    assert routes.topics() == ["T", "U", "filler-1", "filler-2"]


def test_a_single_topic_is_an_increment_and_needs_a_registered_broker(routes):
    lone = TopicTable({"T": TopicConfig("T")}, DataVersion(2, 1000))
    with pytest.raises(BadRequest, match="register all topics first"):
        register(routes, topics=lone)
    assert routes.clusters().broker_addr_table == {}
    register(routes, topics=table("U"))
    register(routes, topics=lone)
    assert brokers_of(routes, "T") == {"a": {0: "a-0:10911"}}


def test_a_4_9_slave_is_in_the_route_but_registers_no_topics(routes):
    register(routes, number=1, topics=table("S"), connection="c1")
    assert routes.topics() == []
    register(routes, number=0, connection="c0")
    assert brokers_of(routes) == {"a": {0: "a-0:10911", 1: "a-1:10911"}}


def test_a_slave_gets_the_address_of_its_master_and_a_master_gets_none(routes):
    assert register(routes, number=1, connection="c1") == RegistrationResult()
    assert register(routes, number=0, connection="c0") == RegistrationResult()
    assert register(routes, number=1, connection="c1") == RegistrationResult("a-0:10911", "a-0:10912")


@pytest.mark.parametrize("acting_master", [True, False])
def test_the_first_5_x_slave_registers_topics_when_there_is_no_master(routes, acting_master):
    register(routes, number=2, topics=table("T"), acting_master=acting_master, connection="c2")
    register(routes, number=3, topics=table("U"), acting_master=acting_master, connection="c3")
    assert "T" in routes.topics()
    assert "U" not in routes.topics()


def test_the_first_slave_becomes_a_read_only_acting_master(routes):
    for number in (0, 1, 2):
        register(routes, number=number, acting_master=True, connection=number)
    assert queues_of(routes).perm == 6
    routes.connection_closed(0)
    assert brokers_of(routes) == {"a": {0: "a-1:10911", 2: "a-2:10911"}}
    assert queues_of(routes).perm == 4
    assert routes.member_addresses("a") == {1: "a-1:10911", 2: "a-2:10911"}
    register(routes, number=0, acting_master=True, connection=9)
    assert queues_of(routes).perm == 6


def test_the_member_sync_topic_has_no_acting_master(routes):
    topic = "rmq_sys_SYNC_BROKER_MEMBER_a"
    register(routes, number=1, topics=table(topic, perm=6), acting_master=True)
    assert brokers_of(routes, topic) == {"a": {1: "a-1:10911"}}
    assert queues_of(routes, topic).perm == 6


def test_without_acting_masters_a_route_keeps_the_real_broker_ids(routes):
    register(routes, number=1, acting_master=False)
    assert brokers_of(routes) == {"a": {1: "a-1:10911"}}
    assert queues_of(routes).perm == 6


def test_a_slave_that_becomes_master_is_listed_once(routes):
    register(routes, number=0, connection="c0")
    register(routes, number=1, address="x:1", connection="c1")
    routes.connection_closed("c0")
    register(routes, number=0, address="x:1", connection="c1")
    assert brokers_of(routes) == {"a": {0: "x:1"}}
    assert routes.connection_closed("c1") == [RemovedBroker("a", 0, "x:1")]


def test_an_older_master_is_ignored(routes):
    register(routes, address="new:1", topics=table("T", state=2), connection="new")
    assert register(routes, address="old:1", topics=table("T", state=1), connection="old") == RegistrationResult()
    assert brokers_of(routes) == {"a": {0: "new:1"}}
    register(routes, address="newer:1", topics=table("T", state=2), connection="newer")
    assert brokers_of(routes) == {"a": {0: "newer:1"}}


def test_a_closed_connection_removes_exactly_its_own_brokers(routes):
    register(routes, "a", connection="shared")
    register(routes, "b", connection="shared")
    register(routes, "c", connection="other")
    assert {gone.broker_name for gone in routes.connection_closed("shared")} == {"a", "b"}
    assert brokers_of(routes) == {"c": {0: "c-0:10911"}}
    assert routes.connection_closed("shared") == []


def test_a_broker_on_a_new_connection_survives_the_close_of_its_old_one(routes):
    register(routes, connection="old")
    register(routes, connection="new")
    assert routes.connection_closed("old") == []
    assert brokers_of(routes) == {"a": {0: "a-0:10911"}}
    assert routes.connection_closed("new") == [RemovedBroker("a", 0, "a-0:10911")]


def test_a_heartbeat_on_a_new_connection_survives_the_close_of_the_old_one(routes):
    register(routes, connection="old")
    assert routes.touch("a", "a-0:10911", connection="new", now_ms=1) == DataVersion(1, 1000)
    assert routes.connection_closed("old") == []
    assert len(routes.connection_closed("new")) == 1


def test_a_heartbeat_of_an_unknown_broker_asks_it_to_register(routes):
    register(routes)
    assert routes.touch("b", "a-0:10911", connection="c", now_ms=0) is None
    assert routes.touch("a", "elsewhere:1", connection="c", now_ms=0) is None


def test_a_silent_broker_is_dropped_after_its_timeout(routes):
    register(routes, "a", now_ms=0, connection="ca")
    register(routes, "b", now_ms=0, heartbeat_timeout_ms=10, connection="cb")
    assert routes.expire(10) == []
    assert routes.expire(11) == [RemovedBroker("b", 0, "b-0:10911")]
    routes.touch("a", "a-0:10911", connection="ca", now_ms=100)
    assert routes.expire(SILENCE_MS + 100) == []
    assert routes.expire(SILENCE_MS + 101) == [RemovedBroker("a", 0, "a-0:10911")]
    assert routes.topics() == []


def test_topics_stay_while_one_member_of_the_broker_stays(routes):
    register(routes, number=0, connection="c0")
    register(routes, number=1, connection="c1")
    assert routes.unregister("a", "a-0:10911") == [RemovedBroker("a", 0, "a-0:10911")]
    assert brokers_of(routes) == {"a": {1: "a-1:10911"}}
    routes.unregister("a", "a-1:10911")
    assert routes.route("T") is None
    assert routes.clusters() == bodies.ClusterTable()


def test_unregistering_an_unknown_broker_changes_nothing(routes):
    register(routes)
    assert routes.unregister("b", "b-0:10911") == []
    assert routes.unregister("a", "elsewhere:1") == []
    assert brokers_of(routes) == {"a": {0: "a-0:10911"}}


def test_a_broker_belongs_to_the_cluster_of_its_last_registration(routes):
    register(routes, "a", cluster="one", connection="ca")
    register(routes, "b", cluster="one", connection="cb")
    assert routes.topics_of_cluster("one") == ["T", "filler-1", "filler-2"]
    register(routes, "a", cluster="two", connection="ca")
    assert routes.clusters().cluster_addr_table == {"one": ["b"], "two": ["a"]}
    register(routes, "b", cluster="two", connection="cb")
    assert routes.clusters().cluster_addr_table == {"two": ["a", "b"]}
    assert routes.topics_of_cluster("one") == []


def test_removed_write_permissions_stay_removed_until_the_topics_change(routes):
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


def test_write_permissions_can_be_restored(routes):
    register(routes)
    routes.forbid_writes("a")
    assert routes.allow_writes("a") == 3
    assert queues_of(routes).perm == 6
    assert routes.forbid_writes("unknown") == routes.allow_writes("unknown") == 0


def test_a_deleted_topic_returns_with_a_broker_that_still_has_it(routes):
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


def test_a_topic_is_registered_manually_for_known_brokers_only(routes):
    register(routes)
    queues = QueueData("a", 2, 2, 6)
    assert not routes.register_topic("U", [queues, QueueData("unknown", 2, 2, 6)])
    assert routes.route("U") is None
    assert routes.register_topic("U", [queues])
    assert queues_of(routes, "U") == queues
    routes.connection_closed("c")
    assert routes.route("U") is None


def rivals(routes):
    return routes.conflicts.current()


def test_two_brokers_that_register_one_id_in_turn_are_a_conflict(routes):
    register(routes, address="x:1", connection="cx")
    assert register(routes, address="y:1", connection="cy").rival_address is None, "a takeover is no conflict"
    assert rivals(routes) == {}
    assert register(routes, address="x:1", connection="cx").rival_address == "y:1"
    assert register(routes, address="y:1", connection="cy").rival_address is None, "it is told once"
    assert rivals(routes) == {("a", 0): ["x:1", "y:1"]}


@pytest.mark.parametrize("leave", ["close", "unregister", "another id"])
def test_a_conflict_ends_when_one_of_the_brokers_leaves(routes, leave):
    for address in ("x:1", "y:1", "x:1"):
        register(routes, address=address, connection=f"c{address}")
    assert rivals(routes)
    if leave == "close":
        routes.connection_closed("cy:1")
    elif leave == "unregister":
        routes.unregister("a", "y:1")
    else:
        register(routes, number=1, address="y:1", connection="cy:1")
    assert rivals(routes) == {}


def test_leaders_that_take_turns_are_no_conflict(routes):
    register(routes, address="x:1", connection="cx")
    for leader, follower in (("y:1", "x:1"), ("x:1", "y:1"), ("y:1", "x:1")):
        register(routes, address=leader, connection=f"c{leader}")
        register(routes, number=1, address=follower, connection=f"c{follower}")
    assert rivals(routes) == {}


def test_a_broker_that_was_replaced_while_it_restarted_is_no_conflict(routes):
    register(routes, address="x:1", connection="old")
    register(routes, address="y:1", connection="cy")
    routes.connection_closed("old")
    register(routes, address="x:1", connection="new")
    assert rivals(routes) == {}
