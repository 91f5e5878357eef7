"""Admin requests of operators' tools, over a real socket."""

import pytest
from tests.support.broker_client import LOG, BrokerClient, Clock, running_broker_client

from sparrow.model.queue import Queue
from sparrow.wire import bodies, headers, record
from sparrow.wire.bodies import GroupConfig, QueueRef, TopicConfig
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import DeleteGroup, DeleteTopic, GetGroupConfig, TopicRequest, UpdateTopic

Q0, Q1 = Queue("T", 0), Queue("T", 1)
NO_CORRECTION = (1 << 63) - 1


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def client(tmp_path, clock):
    async with running_broker_client(tmp_path / "store", clock) as client:
        yield client


def a_topic(name: str = "T", **changes: object) -> UpdateTopic:
    fields = {
        "topic": name,
        "template_topic": "TBW102",
        "read_queues": 2,
        "write_queues": 2,
        "permission": 6,
        "filter_type": "SINGLE_TAG",
        "is_ordered": False,
    }
    return UpdateTopic(**(fields | changes))


async def make(client: BrokerClient, name: str = "T", **changes: object) -> None:
    await client.request_ok(RequestCode.UPDATE_AND_CREATE_TOPIC, a_topic(name, **changes))


async def topic_of(client: BrokerClient, name: str = "T") -> TopicConfig:
    return await client.request_body(TopicConfig, RequestCode.GET_TOPIC_CONFIG, TopicRequest(name))


async def all_topics(client: BrokerClient) -> bodies.TopicTable:
    return await client.request_body(bodies.TopicTable, RequestCode.GET_ALL_TOPIC_CONFIG)


async def all_groups(client: BrokerClient) -> bodies.GroupTable:
    return await client.request_body(bodies.GroupTable, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)


def queue(topic: str, number: int) -> QueueRef:
    return QueueRef(topic, "sparrow", number)


class TestTopics:
    async def test_a_topic_is_created_updated_and_listed(self, client):
        await make(client)
        assert await topic_of(client) == TopicConfig("T", 2, 2)
        before = await all_topics(client)
        await make(client, read_queues=8, write_queues=4, permission=4, is_ordered=True, sys_flag=1)
        changed = TopicConfig("T", 8, 4, 4, topic_sys_flag=1, order=True)
        after = await all_topics(client)
        assert await topic_of(client) == changed == after.topic_config_table["T"]
        assert after.data_version != before.data_version
        assert {"TBW102", "DefaultCluster", "sparrow"} <= set(after.topic_config_table)

    async def test_an_unchanged_topic_update_keeps_the_data_version(self, client):
        await make(client)
        before = await all_topics(client)
        await make(client)
        assert await all_topics(client) == before

    async def test_a_topic_survives_a_restart_of_the_broker(self, tmp_path):
        async with running_broker_client(tmp_path / "store") as client:
            await make(client, attributes="+message.type=FIFO")
        async with running_broker_client(tmp_path / "store") as client:
            assert await topic_of(client) == TopicConfig("T", 2, 2, attributes={"message.type": "FIFO"})

    async def test_topic_attributes_are_added_changed_and_removed(self, client):
        await make(client, attributes="+message.type=FIFO, +queue.type=SimpleCQ")
        await make(client, attributes="+message.type=DELAY,-queue.type,-reserve.time")
        assert (await topic_of(client)).attributes == {"message.type": "DELAY"}
        await make(client, permission=4)
        assert (await topic_of(client)).attributes == {"message.type": "DELAY"}

    async def test_batch_consume_queues_are_refused_with_the_reason(self, client):
        wrong = a_topic(attributes="+queue.type=BatchCQ")
        assert await client.request_refused(RequestCode.UPDATE_AND_CREATE_TOPIC, wrong) == (
            ResponseCode.INVALID_PARAMETER,
            "attribute 'queue.type' cannot be 'BatchCQ': a batch is stored as single messages here, so there are no "
            "batch consume queues; use one of SimpleCQ",
        )

    @pytest.mark.parametrize(
        "wrong",
        [
            {"name": ""},
            {"name": "no spaces"},
            {"name": "../../etc"},
            {"name": "x" * 128},
            {"name": "TBW102"},
            {"name": "SCHEDULE_TOPIC_XXXX"},
            {"name": "DefaultCluster"},
            {"name": "rmq_sys_SPARROW_STATE"},
            {"name": "rmq_sys_anything"},
            {"read_queues": 0},
            {"write_queues": 0},
            {"write_queues": -1},
            {"read_queues": 65_537},
            {"write_queues": (1 << 31) - 1},
            {"permission": -1},
            {"permission": 8},
            {"permission": 1 << 30},
            {"filter_type": "NO_TAG"},
            {"sys_flag": 4},
            {"sys_flag": -1},
            {"attributes": "+no.such=1"},
            {"attributes": "message.type=FIFO"},
            {"attributes": "+message.type"},
            {"attributes": "-message.type=FIFO"},
            {"attributes": "+message.type=SOMETIMES"},
            {"attributes": "+cleanup.policy=COMPACTION"},
            {"attributes": "+queue.type=BatchCQ"},
            {"attributes": "+message.type=LITE"},
            {"attributes": "+reserve.time=3600000"},
        ],
        ids=str,
    )
    async def test_an_invalid_topic_is_refused_and_not_created(self, client, wrong):
        before = await all_topics(client)
        code, _ = await client.request_refused(RequestCode.UPDATE_AND_CREATE_TOPIC, a_topic(**wrong))
        assert code == ResponseCode.INVALID_PARAMETER
        assert await all_topics(client) == before

    async def test_a_topic_request_with_a_missing_or_too_large_field_is_refused(self, client):
        code, remark = await client.request_refused(RequestCode.UPDATE_AND_CREATE_TOPIC)
        assert (code, "topic" in remark) == (ResponseCode.SYSTEM_ERROR, True)
        code, remark = await client.request_refused(RequestCode.UPDATE_AND_CREATE_TOPIC, a_topic(read_queues=1 << 40))
        assert (code, "readQueueNums" in remark) == (ResponseCode.SYSTEM_ERROR, True)

    async def test_a_list_of_topics_is_created_completely_or_not_at_all(self, client):
        good, bad = TopicConfig("A", 1, 1, attributes={"+message.type": "FIFO"}), TopicConfig("B", 0, 1)
        listed = bodies.write(bodies.TopicConfigList([good, bad]))
        code, _ = await client.request_refused(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=listed)
        assert code == ResponseCode.INVALID_PARAMETER
        assert "A" not in (await all_topics(client)).topic_config_table
        listed = bodies.write(bodies.TopicConfigList([good, TopicConfig("B", 1, 1)]))
        await client.request_ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=listed)
        assert (await topic_of(client, "A")).attributes == {"message.type": "FIFO"}
        assert (await topic_of(client, "B")).read_queue_nums == 1

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"[]", b'{"topicConfigList":[{}]}', b'{"topicConfigList":[]}', b"\xff"]
    )
    async def test_a_malformed_list_of_topics_is_refused(self, client, body):
        await client.request_refused(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)

    async def test_a_static_topic_is_refused_as_not_supported(self, client):
        code, remark = await client.request_refused(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, a_topic())
        assert (code, "static" in remark) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, True)

    async def test_deleting_a_topic_deletes_its_messages_and_committed_offsets(self, client):
        await client.send(Q0, b"x")
        await client.commit("g", Q0, 1)
        await client.request_ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("T"))
        assert (await client.request_refused(RequestCode.GET_TOPIC_CONFIG, TopicRequest("T")))[
            0
        ] == ResponseCode.TOPIC_NOT_EXIST
        assert (await client.request_refused(RequestCode.GET_TOPIC_STATS_INFO, TopicRequest("T")))[
            0
        ] == ResponseCode.TOPIC_NOT_EXIST
        assert (
            await client.request_body(bodies.ConsumerOffsets, RequestCode.GET_ALL_CONSUMER_OFFSET)
        ).offset_table == {}
        await make(client)
        stats = await client.request_body(bodies.TopicStats, RequestCode.GET_TOPIC_STATS_INFO, TopicRequest("T"))
        assert stats.offset_table[queue("T", 0)] == bodies.TopicOffset(0, 0, 0)
        assert stats.topic_put_tps == 0.0

    async def test_deleting_an_unknown_topic_succeeds(self, client):
        await client.request_ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("Nowhere"))

    @pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "sparrow", "rmq_sys_SPARROW_STATE", "", "a b"])
    async def test_deleting_a_system_topic_or_an_illegal_name_is_refused(self, client, name):
        before = await all_topics(client)
        assert (await client.request_refused(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic(name)))[
            0
        ] == ResponseCode.INVALID_PARAMETER
        assert await all_topics(client) == before

    async def test_system_topics_are_listed(self, client):
        listed = (await client.request_body(bodies.TopicList, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).topic_list
        assert {"TBW102", "SELF_TEST_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC", "DefaultCluster"} <= set(listed)

    async def test_topic_stats_include_empty_queues(self, client, clock):
        await make(client, read_queues=3, write_queues=2)
        await client.send(Q0, b"1")
        clock.now_ms += 1_000
        await client.send(Q0, b"2")
        stats = await client.request_body(bodies.TopicStats, RequestCode.GET_TOPIC_STATS_INFO, TopicRequest("T"))
        assert stats.offset_table == {
            queue("T", 0): bodies.TopicOffset(0, 2, clock.now_ms),
            queue("T", 1): bodies.TopicOffset(0, 0, 0),
            queue("T", 2): bodies.TopicOffset(0, 0, 0),
        }

    async def test_topic_stats_cover_20_000_queues(self, client):
        await make(client, read_queues=20_000, write_queues=20_000)
        stats = await client.request_body(bodies.TopicStats, RequestCode.GET_TOPIC_STATS_INFO, TopicRequest("T"))
        assert len(stats.offset_table) == 20_000

    async def test_put_tps_of_a_topic_is_the_rate_of_the_last_minute(self, client, clock):
        client.broker.counters.tick(clock.now_ms)
        for _ in range(30):
            await client.send(Q0, b"x")
        clock.now_ms += 10_000
        stats = await client.request_body(bodies.TopicStats, RequestCode.GET_TOPIC_STATS_INFO, TopicRequest("T"))
        assert stats.topic_put_tps == pytest.approx(3.0)

    async def test_groups_of_a_topic_are_those_online_and_those_with_offsets(self, client):
        await make(client)
        await client.subscribe("online", T="*")
        await client.commit("offline", Q0, 0)
        await client.send(Queue("Other", 0), b"x")
        await client.commit("elsewhere", Queue("Other", 0), 0)
        readers = await client.request_body(bodies.GroupList, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequest("T"))
        assert readers.group_list == ["offline", "online"]
        readers = await client.request_body(
            bodies.GroupList, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequest("Nowhere")
        )
        assert readers.group_list == []


class TestGroups:
    async def test_a_group_is_created_updated_and_listed(self, client):
        for retries in (3, -1):
            config = GroupConfig("g", retry_max_times=retries, retry_queue_nums=2, consume_broadcast_enable=False)
            await client.request_ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=bodies.write(config))
            assert (
                await client.request_body(GroupConfig, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GetGroupConfig("g"))
                == config
            )
        listed = (await all_groups(client)).subscription_group_table
        assert listed["g"] == config
        assert "TOOLS_CONSUMER" in listed

    async def test_the_group_table_contains_a_forbidden_table(self, client):
        answer = await client.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        assert b'"forbiddenTable":{}' in bytes(answer.body)

    async def test_topic_and_group_tables_omit_the_total_so_that_tools_request_one_page(self, client):
        for code, header in (
            (RequestCode.GET_ALL_TOPIC_CONFIG, headers.ListTopics(0, "", 1)),
            (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, headers.ListGroups(0, "", 1)),
        ):
            assert (await client.request_ok(code, header)).total is None
        assert (
            len((await client.request_body(bodies.TopicTable, RequestCode.GET_ALL_TOPIC_CONFIG)).topic_config_table) > 1
        )

    async def test_a_list_of_groups_is_created_completely_or_not_at_all(self, client):
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        listed = bodies.GroupConfigList([GroupConfig("a"), GroupConfig("b", retry_max_times=-2)])
        assert (await client.request_refused(code, body=bodies.write(listed)))[0] == ResponseCode.INVALID_PARAMETER
        assert "a" not in (await all_groups(client)).subscription_group_table
        await client.request_ok(code, body=bodies.write(bodies.GroupConfigList([GroupConfig("a"), GroupConfig("b")])))
        assert {"a", "b"} <= set((await all_groups(client)).subscription_group_table)

    @pytest.mark.parametrize(
        "wrong",
        [
            GroupConfig(""),
            GroupConfig("no spaces"),
            GroupConfig("x" * 121),
            GroupConfig("g", retry_queue_nums=-1),
            GroupConfig("g", retry_queue_nums=1 << 30),
            GroupConfig("g", retry_max_times=1 << 30),
        ],
        ids=str,
    )
    async def test_an_invalid_group_is_refused_and_not_created(self, client, wrong):
        code, _ = await client.request_refused(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=bodies.write(wrong)
        )
        assert code == ResponseCode.INVALID_PARAMETER
        assert wrong.group_name not in (await all_groups(client)).subscription_group_table

    @pytest.mark.parametrize("body", [b"", b"nonsense", b"{}", b'{"groupName":7,"retryMaxTimes":"many"}'])
    async def test_a_malformed_group_body_is_refused(self, client, body):
        await client.request_refused(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def test_reading_an_unknown_group_creates_it_because_the_proxy_reads_it_first(self, client):
        read = await client.request_body(GroupConfig, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GetGroupConfig("new"))
        assert read == GroupConfig("new")
        assert "new" in (await all_groups(client)).subscription_group_table

    async def test_reading_an_unknown_group_is_refused_if_groups_are_not_created(self, tmp_path):
        async with running_broker_client(tmp_path / "strict", auto_create_groups=False) as client:
            refusal = await client.request_refused(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GetGroupConfig("nobody"))
        assert refusal[0] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    @pytest.mark.parametrize(
        ("asked", "is_kept"),
        [
            (DeleteGroup("g"), True),
            (DeleteGroup("g", clean_offsets=False), True),
            (DeleteGroup("g", clean_offsets=True), False),
            (DeleteGroup("g", remove_offsets=True), False),
        ],
        ids=str,
    )
    async def test_deleting_a_group_deletes_its_offsets_only_on_request(self, client, asked, is_kept):
        await make(client)
        await client.commit("g", Q0, 3)
        await client.commit("g", Q1, 5)
        await client.commit("stays", Q0, 1)
        await client.request_ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, asked)
        groups = (await all_groups(client)).subscription_group_table
        assert ("g" in groups, "stays" in groups) == (False, True)
        offsets = (await client.request_body(bodies.ConsumerOffsets, RequestCode.GET_ALL_CONSUMER_OFFSET)).offset_table
        assert offsets == {"T@stays": {0: 1}} | ({"T@g": {0: 3, 1: 5}} if is_kept else {})

    async def test_offsets_of_a_deleted_group_can_be_deleted_later(self, client):
        await make(client)
        await client.commit("g", Q0, 3)
        await client.request_ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("g"))
        await client.commit("stays", Q0, 1)
        await client.request_ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("g", clean_offsets=True))
        assert (
            await client.request_body(bodies.ConsumerOffsets, RequestCode.GET_ALL_CONSUMER_OFFSET)
        ).offset_table == {"T@stays": {0: 1}}

    async def test_deleting_a_system_group_is_refused(self, client):
        code, _ = await client.request_refused(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("TOOLS_CONSUMER"))
        assert code == ResponseCode.INVALID_PARAMETER
        assert "TOOLS_CONSUMER" in (await all_groups(client)).subscription_group_table

    async def test_forbidding_a_topic_to_a_group_is_refused_and_the_remark_names_an_alternative(self, client):
        asked = headers.UpdateGroupForbidden("g", "T", False)
        code, remark = await client.request_refused(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, asked)
        assert (code, "read permission" in remark) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, True)


class TestProgress:
    async def stats(self, client: BrokerClient, group: str = "g", **topics: str) -> bodies.ConsumeStats:
        asked = headers.GetConsumeStats(group, **topics)
        return await client.request_body(bodies.ConsumeStats, RequestCode.GET_CONSUME_STATS, asked)

    async def test_consume_stats_cover_every_queue_of_the_topics_of_the_group(self, client, clock):
        await make(client)
        for number in range(3):
            await client.send(Q0, b"%d" % number)
            clock.now_ms += 1_000
        await client.commit("g", Q0, 2)
        found = await self.stats(client)
        second_ms = clock.now_ms - 2_000
        assert found.offset_table == {
            queue("T", 0): bodies.QueueConsumeStats(3, 2, second_ms, pull_offset=2),
            queue("T", 1): bodies.QueueConsumeStats(0, 0, 0),
        }
        await client.commit("g", Q0, 3)
        assert (await self.stats(client)).offset_table[queue("T", 0)].last_timestamp == second_ms + 1_000

    async def test_consume_stats_filter_by_one_topic_or_by_a_list(self, client):
        for topic in ("A", "B", "C"):
            await make(client, topic, read_queues=1)
            await client.commit("g", Queue(topic, 0), 0)

        def topics(found: bodies.ConsumeStats) -> set[str]:
            return {key.topic for key in found.offset_table}

        assert topics(await self.stats(client)) == {"A", "B", "C"}
        assert topics(await self.stats(client, topic="A")) == {"A"}
        assert topics(await self.stats(client, topic_list="A;B;")) == {"A", "B"}
        assert topics(await self.stats(client, topic_list="A;Nowhere;")) == {"A"}
        assert topics(await self.stats(client, "nobody")) == set()

    async def test_consume_stats_of_an_online_group_cover_only_subscribed_topics(self, client):
        for topic in ("A", "B"):
            await make(client, topic, read_queues=1)
            await client.commit("g", Queue(topic, 0), 0)
        await client.subscribe("g", B="*")
        assert set((await self.stats(client)).offset_table) == {queue("B", 0)}

    async def test_consume_stats_return_an_offset_beyond_the_end_unchanged(self, client):
        await make(client, read_queues=1)
        await client.commit("g", Q0, 1 << 60)
        assert (await self.stats(client)).offset_table[queue("T", 0)].consumer_offset == 1 << 60

    async def test_consume_tps_of_a_group_is_the_rate_of_the_last_minute(self, client, clock):
        client.broker.counters.tick(clock.now_ms)
        for _ in range(20):
            await client.send(Q0, b"x")
        assert len(record.decode_all(bytes((await client.pull("g", Q0)).body))) == 20
        await client.commit("g", Q0, 20)
        clock.now_ms += 10_000
        assert (await self.stats(client)).consume_tps == pytest.approx(2.0)

    async def test_broker_consume_stats_list_ordered_and_unordered_topics_separately(self, client):
        await make(client, "Plain", read_queues=1)
        await make(client, "Ordered", read_queues=1, is_ordered=True)
        for number in range(5):
            await client.send(Queue("Plain", 0), b"%d" % number)
        await client.commit("g", Queue("Plain", 0), 2)
        await client.commit("h", Queue("Plain", 0), 5)
        await client.commit("h", Queue("Ordered", 0), 0)
        code = RequestCode.GET_BROKER_CONSUME_STATS
        found = await client.request_body(bodies.ConsumeStatsList, code, headers.GetBrokerConsumeStats(False))
        assert (found.broker_addr, found.total_diff) == (str(client.server.address), 3)
        listed = {group: stats for entry in found.consume_stats_list for group, stats in entry.items()}
        assert [set(stats.offset_table) for stats in listed["g"]] == [{queue("Plain", 0)}]
        assert [set(stats.offset_table) for stats in listed["h"]] == [{queue("Plain", 0)}]
        found = await client.request_body(bodies.ConsumeStatsList, code, headers.GetBrokerConsumeStats(True))
        listed = {group: stats for entry in found.consume_stats_list for group, stats in entry.items()}
        assert [set(stats.offset_table) for stats in listed["h"]] == [{queue("Ordered", 0)}]
        assert listed["g"] == []

    async def test_consume_time_span_contains_the_age_of_the_next_message(self, client, clock):
        await make(client)
        begun_ms = clock.now_ms
        for number in range(3):
            await client.send(Q0, b"%d" % number)
            clock.now_ms += 1_000
        asked = headers.GetConsumeTimeSpans("T", "g")

        async def span(number: int) -> bodies.QueueTimeSpan:
            found = await client.request_body(bodies.ConsumeTimeSpans, RequestCode.QUERY_CONSUME_TIME_SPAN, asked)
            return found.consume_time_span_set[number]

        assert await span(0) == bodies.QueueTimeSpan(queue("T", 0), begun_ms, begun_ms + 2_000, begun_ms, 3_000)
        await client.commit("g", Q0, 2)
        assert await span(0) == bodies.QueueTimeSpan(queue("T", 0), begun_ms, begun_ms + 2_000, begun_ms + 1_000, 1_000)
        await client.commit("g", Q0, 3)
        assert (await span(0)).delay_time == 0
        assert await span(1) == bodies.QueueTimeSpan(queue("T", 1), -1, -1, -1, 0)
        refusal = await client.request_refused(
            RequestCode.QUERY_CONSUME_TIME_SPAN, headers.GetConsumeTimeSpans("Nowhere", "g")
        )
        assert refusal[0] == ResponseCode.TOPIC_NOT_EXIST

    async def test_topics_of_a_group_are_those_with_committed_offsets(self, client):
        for topic in ("A", "B"):
            await make(client, topic)
            await client.commit("g", Queue(topic, 0), 0)
        found = await client.request_body(
            bodies.TopicList, RequestCode.QUERY_TOPICS_BY_CONSUMER, headers.GetGroupTopics("g")
        )
        assert found == bodies.TopicList(["A", "B"], str(client.server.address))

    async def test_the_subscription_of_a_group_is_returned_only_while_it_is_online(self, client):
        code, asked = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, headers.GetGroupSubscription("g", "T")
        assert (await client.request_body(bodies.GroupSubscription, code, asked)).subscription_data is None
        await client.subscribe("g", T="a || b")
        found = await client.request_body(bodies.GroupSubscription, code, asked)
        assert (found.group, found.topic, found.subscription_data.sub_string) == ("g", "T", "a || b")

    async def test_a_corrected_offset_is_the_lowest_of_other_groups_that_lag_behind(self, client):
        await make(client)
        for group, offsets in {"slow": (2, 9), "fast": (7, 9), "ignored": (0, 0), "compared": (5, 5)}.items():
            for target, offset in zip((Q0, Q1), offsets, strict=True):
                await client.commit(group, target, offset)
        asked = headers.GetCorrectedOffsets("compared", "T", "ignored,compared")
        found = await client.request_body(bodies.CorrectedOffsets, RequestCode.QUERY_CORRECTION_OFFSET, asked)
        assert found.correction_offsets == {0: 2, 1: NO_CORRECTION}

    async def test_cloning_offsets_copies_the_committed_offsets_of_one_or_all_topics(self, client):
        await make(client)
        await make(client, "Other")
        await client.commit("from", Q0, 4)
        await client.commit("from", Queue("Other", 1), 6)
        await client.request_ok(RequestCode.CLONE_GROUP_OFFSET, headers.CloneGroupOffsets("from", "one", "T"))
        await client.request_ok(RequestCode.CLONE_GROUP_OFFSET, headers.CloneGroupOffsets("from", "all"))
        await client.request_ok(RequestCode.CLONE_GROUP_OFFSET, headers.CloneGroupOffsets("nobody", "none"))
        offsets = (await client.request_body(bodies.ConsumerOffsets, RequestCode.GET_ALL_CONSUMER_OFFSET)).offset_table
        assert {of: at for of, at in offsets.items() if not of.endswith("@from")} == {
            "T@one": {0: 4},
            "T@all": {0: 4},
            "Other@all": {1: 6},
        }
        assert {"one", "all"} <= set((await all_groups(client)).subscription_group_table)

    async def test_cloning_offsets_to_an_online_group_covers_only_subscribed_topics(self, client):
        await make(client)
        await make(client, "Other")
        await client.commit("from", Q0, 4)
        await client.commit("from", Queue("Other", 0), 6)
        await client.subscribe("to", T="*")
        await client.request_ok(RequestCode.CLONE_GROUP_OFFSET, headers.CloneGroupOffsets("from", "to"))
        offsets = (await client.request_body(bodies.ConsumerOffsets, RequestCode.GET_ALL_CONSUMER_OFFSET)).offset_table
        assert ("T@to" in offsets, "Other@to" in offsets) == (True, False)
        await client.request_ok(
            RequestCode.CLONE_GROUP_OFFSET, headers.CloneGroupOffsets("from", "to", is_offline=True)
        )
        offsets = (await client.request_body(bodies.ConsumerOffsets, RequestCode.GET_ALL_CONSUMER_OFFSET)).offset_table
        assert offsets["Other@to"] == {0: 6}

    async def test_cloning_offsets_to_an_illegal_group_or_of_an_unknown_topic_is_refused(self, client):
        await make(client)
        await client.commit("from", Q0, 4)
        refusal = await client.request_refused(
            RequestCode.CLONE_GROUP_OFFSET, headers.CloneGroupOffsets("from", "not legal", "T")
        )
        assert refusal[0] == ResponseCode.INVALID_PARAMETER
        refusal = await client.request_refused(
            RequestCode.CLONE_GROUP_OFFSET, headers.CloneGroupOffsets("from", "to", "Nowhere")
        )
        assert refusal[0] == ResponseCode.TOPIC_NOT_EXIST


class TestRuntime:
    async def figures(self, client: BrokerClient) -> dict[str, str]:
        return (await client.request_body(bodies.KvTable, RequestCode.GET_BROKER_RUNTIME_INFO)).table

    async def test_runtime_info_contains_every_key_that_cluster_list_reads(self, client):
        table = await self.figures(client)
        pools = [f"{pool}ThreadPoolQueue" for pool in ("send", "pull", "ack")]
        needed = {"brokerVersionDesc", "brokerActive", "earliestMessageTimeStamp", "commitLogDiskRatio"}
        needed |= {pool + figure for pool in pools for figure in ("Size", "HeadWaitTimeMills")}
        needed |= {"timerReadBehind", "timerOffsetBehind", "timerCongestNum", "timerEnqueueTps", "timerDequeueTps"}
        needed |= {"pageCacheLockTimeMills", "dispatchBehindBytes", "remainHowManyDataToFlush", "consumeQueueDiskRatio"}
        day = ("YesterdayMorning", "TodayMorning", "TodayNow")
        needed |= {f"msg{which}Total{when}" for which in ("Put", "Get") for when in day}
        assert needed <= set(table)
        assert (table["brokerActive"], table["brokerVersionDesc"]) == ("true", "V4_9_7")
        for name in ("putTps", "getTransferredTps", "getFoundTps", "getMissTps", "getTotalTps"):
            assert [float(rate) for rate in table[name].split(" ")] == [0.0] * 3

    async def test_runtime_info_reports_the_commit_log_the_disk_and_the_uptime(self, client, clock):
        begun_ms = clock.now_ms
        await client.send(Q0, b"x" * 100)
        clock.now_ms += 90_061_000
        table = await self.figures(client)
        assert int(table["commitLogMaxOffset"]) == client.broker.store.written > 100
        assert table["commitLogMinOffset"] == "0"
        assert table["earliestMessageTimeStamp"] == str(begun_ms)
        assert 0 < float(table["commitLogDiskRatio"]) < 1
        assert table["bootTimestamp"] == str(begun_ms)
        assert table["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"

    async def test_runtime_info_reports_put_and_get_rates(self, client, clock):
        await self.figures(client)
        for _ in range(20):
            await client.send(Q0, b"x" * 10)
        await client.pull("g", Q0)
        await client.pull("g", Q0, 20)
        clock.now_ms += 10_000
        table = await self.figures(client)
        assert table["putTps"] == table["getTransferredTps"] == "2.0 2.0 2.0"
        assert (table["getFoundTps"], table["getMissTps"]) == ("0.1 0.1 0.1", "0.1 0.1 0.1")
        assert table["getTotalTps"] == "0.2 0.2 0.2"
        assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("20", "20")
        assert (table["putMessageTimesTotal"], table["putMessageAverageSize"]) == ("20", "10.0")

    async def test_broker_stats_are_returned_by_name_and_key(self, client, clock):
        client.broker.counters.tick(clock.now_ms)
        for _ in range(20):
            await client.send(Q0, b"x" * 10)
        await client.pull("g", Q0)
        clock.now_ms += 10_000

        async def minute(name: str, key: str) -> bodies.StatsItem:
            found = await client.request_body(
                bodies.BrokerStats, RequestCode.VIEW_BROKER_STATS_DATA, headers.GetBrokerStats(name, key)
            )
            assert found.stats_minute.sum == found.stats_hour.sum == found.stats_day.sum
            return found.stats_minute

        assert await minute("TOPIC_PUT_NUMS", "T") == bodies.StatsItem(20, 2.0, 1.0)
        assert await minute("TOPIC_PUT_SIZE", "T") == bodies.StatsItem(200, 20.0, 10.0)
        assert await minute("GROUP_GET_NUMS", "T@g") == bodies.StatsItem(20, 2.0, 20.0)
        assert (await minute("GROUP_GET_SIZE", "T@g")).sum > 20 * 91

    @pytest.mark.parametrize(
        ("name", "key"),
        [
            ("TOPIC_PUT_NUMS", "Nowhere"),
            ("GROUP_GET_NUMS", "T"),
            ("GROUP_GET_NUMS", "@"),
            ("NO_SUCH_STATS", "T"),
            ("", ""),
        ],
    )
    async def test_unknown_broker_stats_are_refused(self, client, name, key):
        await client.send(Q0, b"x")
        refusal = await client.request_refused(RequestCode.VIEW_BROKER_STATS_DATA, headers.GetBrokerStats(name, key))
        assert refusal[0] == ResponseCode.SYSTEM_ERROR

    async def test_broker_config_is_returned_as_java_properties(self, tmp_path):
        folder = tmp_path / "a b\\Jürgen"
        async with running_broker_client(folder, name="b1", auto_create_topics=False) as client:
            answer = await client.request(RequestCode.GET_BROKER_CONFIG)
            said = headers.read(headers.GetBrokerConfigResponse, answer.ext)
            assert bodies.read(bodies.DataVersion, said.version.encode()).timestamp == client.broker.started_ms
            lines = dict(line.split("=", 1) for line in bytes(answer.body).decode("ascii").splitlines())
        assert (lines["brokerName"], lines["autoCreateTopicEnable"], lines["flushDiskType"]) == (
            "b1",
            "false",
            "ASYNC_FLUSH",
        )
        assert lines["listenPort"] == str(client.server.address.port)
        assert lines["mappedFileSizeCommitLog"] == str(LOG.segment_bytes)
        assert lines["storePathRootDir"] == f"{tmp_path}/a b\\\\J\\u00FCrgen"

    async def test_updating_the_broker_config_at_run_time_is_refused(self, client):
        before = bytes((await client.request(RequestCode.GET_BROKER_CONFIG)).body)
        code, remark = await client.request_refused(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=1\n")
        assert (code, "restart it" in remark) == (ResponseCode.INVALID_PARAMETER, True)
        assert bytes((await client.request(RequestCode.GET_BROKER_CONFIG)).body) == before

    async def test_expired_segments_are_deleted_on_request_and_younger_ones_are_kept(self, client, clock):
        for _ in range(5):
            await client.send(Q0, b"x" * 300_000)
        await client.request_ok(RequestCode.DELETE_EXPIRED_COMMITLOG)
        assert client.broker.store.first == 0
        clock.now_ms += 100 * 3_600_000
        await client.request_ok(RequestCode.DELETE_EXPIRED_COMMITLOG)
        assert client.broker.store.first == LOG.segment_bytes
        stats = await client.request_body(bodies.TopicStats, RequestCode.GET_TOPIC_STATS_INFO, TopicRequest("T"))
        assert stats.offset_table[queue("T", 0)].min_offset > 0
        assert (await self.figures(client))["commitLogMinOffset"] == str(LOG.segment_bytes)

    async def test_cleanup_requests_without_work_succeed(self, client):
        await client.send(Q0, b"x")
        for code in (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC):
            await client.request_ok(code)
        assert (await topic_of(client)).topic_name == "T"
