"""What speaks against following a master, and what it leaves behind."""

import json

import pytest

from sparrow.replication.rocketmq.findings import check_configuration, check_metadata, check_popped
from sparrow.replication.rocketmq.popped_messages import PoppedMessages

CLASSIC = {"brokerRole": "ASYNC_MASTER", "mappedFileSizeCommitLog": "1073741824"}


def test_a_classic_master_has_no_findings() -> None:
    assert check_configuration(CLASSIC, segment_bytes=None) == []
    assert check_configuration(CLASSIC, segment_bytes=1 << 30) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"enableDLegerCommitLog": "true"}, "DLedger"),
        ({"enableControllerMode": "true"}, "controller mode"),
        ({"brokerRole": "SLAVE"}, "follow its master"),
        ({"mappedFileSizeCommitLog": str(2 << 30)}, "at most"),
        ({"mappedFileSizeCommitLog": str(1 << 20)}, "empty directory"),
    ],
)
def test_what_cannot_be_followed_blocks(settings: dict[str, str], said: str) -> None:
    (finding,) = check_configuration(CLASSIC | settings, segment_bytes=1 << 30)
    assert finding.kind == "blocks"
    assert said in finding.text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"aclEnable": "true"}, "tokens"),
        ({"authorizationEnabled": "true"}, "tokens"),
        ({"enableLmq": "true"}, "light queues"),
        ({"messageDelayLevel": "1s 2s"}, "delay levels"),
        ({"popConsumerKVServiceEnable": "true"}, "RocksDB"),
        ({"enablePopBufferMerge": "true"}, "in memory"),
    ],
)
def test_what_stays_behind_is_a_warning(settings: dict[str, str], said: str) -> None:
    (finding,) = check_configuration(CLASSIC | settings, segment_bytes=None)
    assert finding.kind == "warns"
    assert said in finding.text


def test_topics_without_an_equivalent_are_named() -> None:
    topics = {
        "plain": {"attributes": {}},
        "old": {},
        "batches": {"attributes": {"+queue.type": "BatchCQ"}},
        "latest": {"attributes": {"cleanup.policy": "COMPACTION"}},
    }
    body = {"topicConfigTable": topics, "topicQueueMappingDetailMap": {"fixed": {}}}
    metadata = {"topics.json": json.dumps(body).encode()}
    assert [finding.text.split(" ")[:2] for finding in check_metadata(metadata)] == [
        ["topic", "batches"],
        ["topic", "latest"],
        ["static", "topics"],
    ]
    assert check_metadata({}) == []


def test_pops_in_flight_say_where_the_group_starts_again() -> None:
    (finding,) = check_popped([PoppedMessages("orders", "billing", 3, first=17, count=2)])
    assert finding.kind == "warns"
    assert "billing has popped 2 messages of orders/3" in finding.text
    assert "offset 17" in finding.text
