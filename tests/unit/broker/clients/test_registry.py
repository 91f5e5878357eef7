"""The registry of connected clients, and the subscriptions of their groups."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.broker.clients.registry import ClientRegistry
from sparrow.wire.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from sparrow.wire.codes import Language
from sparrow.wire.hashes import java_hash


@pytest.fixture
def members() -> ClientRegistry:
    return ClientRegistry()


def sub(topic: str = "T", tags: str = "*", version: int = 1, kind: str = "TAG") -> SubscriptionData:
    return SubscriptionData(topic, tags, kind, version)


def consumer(group: str = "g", *subscriptions: SubscriptionData, **more: str) -> ConsumerData:
    return ConsumerData(group, subscription_data_set=list(subscriptions or (sub(),)), **more)


def beat(
    members: ClientRegistry, channel: str, client_id: str, *consumers: ConsumerData, now_ms: int = 0, **more: object
):
    data = HeartbeatData(client_id, consumer_data_set=list(consumers), **more)
    return members.heartbeat(channel, data, language=Language.JAVA, version=407, now_ms=now_ms)


def ids(members: ClientRegistry, group: str = "g") -> list[str]:
    found = members.consumers(group)
    return list(found.members) if found is not None else []


# -- joining and leaving ----------------------------------------------------------------------------------------------


def test_a_new_client_changes_its_group(members):
    assert beat(members, "c1", "a", consumer()).groups == ("g",)
    assert beat(members, "c2", "b", consumer()).groups == ("g",)
    assert ids(members) == ["a", "b"]


def test_a_repeated_heartbeat_changes_nothing(members):
    beat(members, "c1", "a", consumer())
    assert beat(members, "c1", "a", consumer(), now_ms=9).groups == ()
    assert members.find_consumer("g", "a").seen_ms == 9


def test_leaving_eighty_thousand_groups_takes_linear_time(members):
    groups = [ProducerData(f"g{number}") for number in range(80_000)]
    beat(members, "c1", "a", producer_data_set=groups)
    begun = time.process_time()
    members.remove_channel("c1")
    assert time.process_time() - begun < 5, "half a minute if every group is compared with every other"
    assert not members.producer_groups()
    assert members.find_producer("a") is None


def test_a_client_may_be_in_many_groups(members):
    assert beat(members, "c1", "a", consumer("g"), consumer("h")).groups == ("g", "h")
    assert members.has_consumers("g")
    assert members.has_consumers("h")
    assert members.remove_channel("c1").groups == ()
    assert not members.has_consumers("g")
    assert not members.has_consumers("h")


def test_a_closed_connection_reports_the_groups_that_still_have_members(members):
    beat(members, "c1", "a", consumer("g"), consumer("h"))
    beat(members, "c2", "b", consumer("g"))
    assert members.remove_channel("c1").groups == ("g",)
    assert ids(members) == ["b"]


def test_removing_an_unknown_connection_changes_nothing(members):
    assert members.remove_channel("c1").groups == ()


def test_unregistering_ends_one_membership(members):
    beat(members, "c1", "a", consumer("g"), consumer("h"))
    beat(members, "c2", "b", consumer("g"))
    assert members.unregister("c1", "a", consumer_group="g").groups == ("g",)
    assert ids(members, "g") == ["b"]
    assert ids(members, "h") == ["a"]


def test_a_client_cannot_unregister_a_member_of_another_connection(members):
    beat(members, "c1", "a", consumer())
    assert members.unregister("c2", "a", consumer_group="g").groups == ()
    assert ids(members) == ["a"]


def test_a_client_on_a_new_connection_replaces_the_old_one(members):
    beat(members, "c1", "a", consumer(), producer_data_set=[ProducerData("p")])
    changed = beat(members, "c2", "a", consumer(), producer_data_set=[ProducerData("p")])
    assert changed.groups == ("g",)
    assert members.find_consumer("g", "a").channel == "c2"
    assert members.remove_channel("c1").groups == ()
    assert ids(members) == ["a"]
    assert members.find_producer("a").channel == "c2"


def test_a_late_close_of_the_old_connection_keeps_the_client_on_its_new_connection(members):
    beat(members, "c1", "a", producer_data_set=[ProducerData("p"), ProducerData("q")])
    beat(members, "c2", "a", producer_data_set=[ProducerData("p")])
    members.remove_channel("c1")
    assert members.producers("q") == []
    assert members.find_producer("a").channel == "c2"


# -- subscriptions ----------------------------------------------------------------------------------------------------


def test_a_pull_uses_the_filter_of_its_group(members):
    beat(members, "c1", "a", consumer("g", sub("T", "x || y")))
    assert members.subscription_filter("g", "T").tags_codes == {java_hash("x"), java_hash("y")}
    assert members.subscription_filter("g", "U") is None
    assert members.subscription_filter("h", "T") is None


def test_only_a_newer_subscription_replaces_the_current_one(members):
    beat(members, "c1", "a", consumer("g", sub("T", "new", version=5)))
    for version in (4, 5):
        beat(members, "c2", "b", consumer("g", sub("T", "other", version=version)))
        assert members.subscription_filter("g", "T").data.sub_string == "new"
    changed = beat(members, "c2", "b", consumer("g", sub("T", "newest", version=6)))
    assert members.subscription_filter("g", "T").data.sub_string == "newest"
    assert changed.groups == ()  # the topics are the same: no rebalance


def test_topics_missing_from_a_heartbeat_are_removed(members):
    beat(members, "c1", "a", consumer("g", sub("T"), sub("U")))
    assert beat(members, "c1", "a", consumer("g", sub("U"))).groups == ("g",)
    assert members.subscription_filter("g", "T") is None
    assert members.subscription_filter("g", "U") is not None


def test_a_new_topic_changes_the_group(members):
    beat(members, "c1", "a", consumer("g", sub("T")))
    assert beat(members, "c1", "a", consumer("g", sub("T"), sub("U"))).groups == ("g",)
    assert members.groups_of_topic("U") == ["g"]


def test_a_refused_subscription_does_not_affect_the_others_of_a_heartbeat(members):
    changed = beat(members, "c1", "a", consumer("g", sub("S", "a >", kind="SQL92"), sub("T")), consumer("h"))
    (refusal,) = changed.refused
    assert "a >" in str(refusal)
    assert members.subscription_filter("g", "S") is None
    assert members.subscription_filter("g", "T") is not None
    assert members.has_consumers("h")


def test_subscriptions_are_removed_with_the_last_member(members):
    beat(members, "c1", "a", consumer("g", sub("T", version=9)))
    members.remove_channel("c1")
    beat(members, "c1", "a", consumer("g", sub("T", "older", version=1)))
    assert members.subscription_filter("g", "T").data.sub_string == "older"


def test_the_newest_heartbeat_sets_the_consume_mode_of_the_group(members):
    beat(members, "c1", "a", consumer())
    beat(members, "c1", "a", consumer("g", sub(), message_model="BROADCASTING", consume_type="CONSUME_ACTIVELY"))
    group = members.consumers("g")
    assert (group.message_model, group.consume_type) == ("BROADCASTING", "CONSUME_ACTIVELY")


# -- heartbeats without subscriptions ---------------------------------------------------------------------------------


def test_a_heartbeat_without_subscriptions_keeps_the_known_ones(members):
    beat(members, "c1", "a", consumer(), heartbeat_fingerprint=7)
    changed = beat(members, "c1", "a", ConsumerData("g"), heartbeat_fingerprint=7, without_sub=True, now_ms=5)
    assert (changed.groups, changed.needs_subscriptions) == ((), False)
    assert members.subscription_filter("g", "T") is not None
    assert members.find_consumer("g", "a").seen_ms == 5


def test_a_heartbeat_without_subscriptions_for_an_unknown_group_asks_for_them(members):
    changed = beat(members, "c1", "a", ConsumerData("g"), heartbeat_fingerprint=7, without_sub=True)
    assert changed.needs_subscriptions
    assert ids(members) == ["a"]


def test_a_changed_fingerprint_asks_for_subscriptions(members):
    beat(members, "c1", "a", consumer(), heartbeat_fingerprint=7)
    beat(members, "c2", "b", consumer("g", sub(version=2)), heartbeat_fingerprint=8)
    assert beat(members, "c1", "a", ConsumerData("g"), heartbeat_fingerprint=7, without_sub=True).needs_subscriptions
    assert not beat(members, "c1", "a", consumer(), heartbeat_fingerprint=7).needs_subscriptions


# -- clients without heartbeats ---------------------------------------------------------------------------------------


def test_channels_without_heartbeats_are_silent(members):
    beat(members, "c1", "a", consumer(), now_ms=10)
    beat(members, "c2", "b", consumer(), now_ms=20)
    assert members.silent_channels(10) == []
    assert members.silent_channels(11) == ["c1"]
    members.remove_channel("c1")
    assert members.silent_channels(11) == []


def test_a_channel_without_registrations_is_not_silent(members):
    beat(members, "c1", "a", consumer(), producer_data_set=[ProducerData("p")])
    members.unregister("c1", "a", producer_group="p", consumer_group="g")
    assert members.silent_channels(1_000) == []


def test_a_group_missing_from_later_heartbeats_of_a_client_expires_alone(members):
    beat(members, "c1", "a", consumer("g"), consumer("h"), producer_data_set=[ProducerData("p")], now_ms=0)
    beat(members, "c2", "b", consumer("h"), now_ms=100)
    beat(members, "c1", "a", consumer("g"), now_ms=100)
    assert members.expire(50).groups == ("h",)
    assert ids(members, "g") == ["a"]
    assert ids(members, "h") == ["b"]
    assert members.producers("p") == []
    assert members.find_producer("a") is None


def test_expiry_does_not_report_a_group_that_lost_all_its_members(members):
    beat(members, "c1", "a", consumer("g"), now_ms=0)
    beat(members, "c1", "b", consumer("g"), now_ms=0)
    beat(members, "c1", "a", consumer("h"), now_ms=100)
    assert members.expire(50).groups == ()
    assert not members.has_consumers("g")


# -- producers --------------------------------------------------------------------------------------------------------


def test_producers_are_found_by_group_and_by_id(members):
    beat(members, "c1", "a", producer_data_set=[ProducerData("p"), ProducerData("q")])
    beat(members, "c2", "b", producer_data_set=[ProducerData("p")])
    assert [member.client_id for member in members.producers("p")] == ["a", "b"]
    assert {name: len(found) for name, found in members.producer_groups().items()} == {"p": 2, "q": 1}
    assert members.find_producer("a").channel == "c1"
    members.unregister("c1", "a", producer_group="p")
    assert members.find_producer("a").channel == "c1"
    members.unregister("c1", "a", producer_group="q")
    assert members.find_producer("a") is None
    assert members.producers("q") == []


def test_clients_that_disconnect_leave_no_state_behind(members):
    for number in range(100):
        more = {"producer_data_set": [ProducerData(f"p{number}")]}
        beat(members, f"c{number}", f"id{number}", consumer(f"g{number}"), **more)
        members.remove_channel(f"c{number}")
    assert [table for table in vars(members).values() if table] == []


few = st.integers(0, 2).map(str)
happenings = st.lists(
    st.tuples(st.sampled_from(["beat", "unregister", "left", "expire"]), few, few, st.sets(few), st.sets(few)),
    max_size=40,
)


@given(happenings)
def test_members_and_connections_agree_after_any_operations(happened):
    members = ClientRegistry()
    for now_ms, (what, channel, client_id, consumes, produces) in enumerate(happened):
        if what == "beat":
            more = {"producer_data_set": [ProducerData(name) for name in sorted(produces)]}
            beat(members, channel, client_id, *map(consumer, sorted(consumes)), now_ms=now_ms, **more)
        elif what == "left":
            changed = members.remove_channel(channel)
            assert all(ids(members, group) for group in changed.groups)
        elif what == "expire":
            changed = members.expire(now_ms - 5)
            assert all(ids(members, group) for group in changed.groups)
        else:
            for name in consumes | produces:
                members.unregister(channel, client_id, producer_group=name, consumer_group=name)
        online = {member.channel for name in "012" for member in members.producers(name)}
        for name in "012":
            group = members.consumers(name)
            assert group is None or group.members
            online |= {member.channel for member in group.members.values()} if group else set()
        assert set(members.silent_channels(now_ms + 1)) == online
    for channel in "012":
        members.remove_channel(channel)
    assert [table for table in vars(members).values() if table] == []


# -- members that differ ----------------------------------------------------------------------------------------------


def test_of_three_members_that_differ_each_gets_always_the_same_other_one(members):
    beat(members, "c1", "a", consumer("g", sub(tags="x")))
    beat(members, "c2", "b", consumer("g", sub(tags="y")))
    beat(members, "c3", "c", consumer("g", sub(tags="z")))
    group = members.consumers("g")
    found = {client: group.conflict_of(client)[0] for client in group.members}
    assert found == {"a": "b", "b": "a", "c": "a"}


def test_a_heartbeat_without_subscriptions_keeps_the_last_report(members):
    beat(members, "c1", "a", consumer("g", sub(tags="x")), heartbeat_fingerprint=1)
    beat(members, "c2", "b", ConsumerData("g"), heartbeat_fingerprint=1, without_sub=True)
    assert members.consumers("g").conflict_of("b") is None
    beat(members, "c2", "b", consumer("g", sub(tags="y")), heartbeat_fingerprint=2)
    assert str(members.consumers("g").conflict_of("a")[1]) == "clustering T (y)"
    beat(members, "c2", "b", ConsumerData("g"), heartbeat_fingerprint=2, without_sub=True)
    assert members.consumers("g").conflict_of("a") is not None


def test_the_retry_topic_and_the_order_of_tags_make_no_difference(members):
    beat(members, "c1", "a", consumer("g", sub(tags="x || y"), sub("%RETRY%g")))
    beat(members, "c2", "b", consumer("g", sub(tags="y||x|| ")))
    assert members.consumers("g").conflict_of("a") is None


def test_another_message_model_or_kind_of_expression_is_a_conflict(members):
    beat(members, "c1", "a", consumer("g", sub(tags="x")))
    beat(members, "c2", "b", consumer("g", sub(tags="x"), message_model="BROADCASTING"))
    assert str(members.consumers("g").conflict_of("a")[1]) == "broadcasting T (x)"
    beat(members, "c2", "b", consumer("g", sub(tags="x > 1", kind="SQL92", version=2)))
    assert str(members.consumers("g").conflict_of("a")[1]) == "clustering T (SQL92: x > 1)"
    members.remove_channel("c2")
    assert members.consumers("g").conflict_of("a") is None
