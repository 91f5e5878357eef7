"""RocketMQ's config files as state updates."""

import pytest

from sparrow.model.topic import Group, Topic
from sparrow.store.log.state.rocketmq_config import read_rocketmq_config
from sparrow.store.log.state.updates import GroupUpdate, MarkUpdate, OffsetsUpdate, TopicUpdate

TOPICS = b"""{
	"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1700000000000},
	"topicConfigTable":{
		"Orders":{"attributes":{"+message.type":"FIFO"},"order":true,"perm":4,"readQueueNums":2,"topicFilterType":"SINGLE_TAG",
			"topicName":"Orders","topicSysFlag":1,"writeQueueNums":3},
		"%RETRY%g":{"perm":6,"readQueueNums":1,"writeQueueNums":1}
	}
}"""
GROUPS = b"""{"dataVersion":{},"forbiddenTable":{},"subscriptionGroupTable":{
	"g":{"groupName":"g","consumeEnable":false,"consumeBroadcastEnable":true,"consumeMessageOrderly":true,
		"retryMaxTimes":5,"retryQueueNums":2}}}"""
OFFSETS = b"""{"dataVersion":{},"offsetTable":{"Orders@g":{0:12,1:3},"odd":{0:1},"%RETRY%g@g":{0:0}}}"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "topics.json").write_bytes(TOPICS)
    (tmp_path / "subscriptionGroup.json").write_bytes(GROUPS)
    (tmp_path / "consumerOffset.json").write_bytes(OFFSETS)
    return tmp_path


def test_topics_groups_and_offsets_are_imported(config):
    orders = Topic(
        name="Orders",
        read_queues=2,
        write_queues=3,
        permission=4,
        is_ordered=True,
        sys_flag=1,
        attributes={"+message.type": "FIFO"},
    )
    assert read_rocketmq_config(config) == [
        TopicUpdate("Orders", orders),
        TopicUpdate("%RETRY%g", Topic(name="%RETRY%g", read_queues=1, write_queues=1)),
        GroupUpdate("g", Group(name="g", may_consume=False, is_ordered=True, retry_queues=2, retries_max=5)),
        OffsetsUpdate("Orders", "g", {0: 12, 1: 3}),
        OffsetsUpdate("%RETRY%g", "g", {0: 0}),
    ]


def test_the_groups_that_pop_a_topic_are_imported_as_marks(tmp_path):
    modes = b"""{"messageRequestModeMap":{"Orders":{
        "g":{"consumerGroup":"g","mode":"POP","popShareQueueNum":3,"topic":"Orders"},
        "h":{"consumerGroup":"h","mode":"PULL","popShareQueueNum":0,"topic":"Orders"}}}}"""
    (tmp_path / "messageRequestMode.json").write_bytes(modes)
    assert read_rocketmq_config(tmp_path) == [MarkUpdate("pop.mode g Orders", 3)]


def test_an_empty_folder_gives_no_updates(tmp_path):
    assert read_rocketmq_config(tmp_path) == []


@pytest.mark.parametrize("damaged", [None, b"", b'{"offsetTable":', b"[]", b"\xff\xfe", b'{"offsetTable":7}'])
def test_a_missing_or_damaged_file_is_replaced_by_its_backup(config, damaged):
    path = config / "consumerOffset.json"
    (config / "consumerOffset.json.bak").write_bytes(OFFSETS)
    if damaged is None:
        path.unlink()
    else:
        path.write_bytes(damaged)
    assert OffsetsUpdate("Orders", "g", {0: 12, 1: 3}) in read_rocketmq_config(config)


@pytest.mark.parametrize(
    "entry",
    [b'{"T":{"readQueueNums":"many"}}', b'{"T":{"readQueueNums":null}}', b'{"T":{"attributes":[1]}}', b'{"T":null}'],
)
def test_an_invalid_entry_does_not_prevent_opening_the_store(config, entry):
    (config / "topics.json").write_bytes(b'{"topicConfigTable":' + entry + b"}")
    assert OffsetsUpdate("Orders", "g", {0: 12, 1: 3}) in read_rocketmq_config(config)


def test_names_that_are_not_valid_folder_names_are_skipped(config):
    (config / "topics.json").write_bytes(b'{"topicConfigTable":{"../up":{},"a b":{},"ok":{}}}')
    assert [word.name for word in read_rocketmq_config(config) if isinstance(word, TopicUpdate)] == ["ok"]


def test_delivered_positions_of_delayed_messages_become_marks(tmp_path):
    (tmp_path / "delayOffset.json").write_bytes(b'{"dataVersion":{},"offsetTable":{1:10,18:7,0:3,"x":1,2:"y"}}')
    (tmp_path / "timercheck").write_bytes((1_700_000_000_000).to_bytes(8, "big") + bytes(4088))
    assert read_rocketmq_config(tmp_path) == [
        MarkUpdate("timers.from.0", 10),
        MarkUpdate("timers.from.17", 7),
        MarkUpdate("timers.wheel_ms", 1_700_000_000_000),
    ]


@pytest.mark.parametrize("content", [b"", bytes(4096)])
def test_a_timer_wheel_that_never_ran_gives_no_mark(tmp_path, content):
    (tmp_path / "timercheck").write_bytes(content)
    assert read_rocketmq_config(tmp_path) == []
