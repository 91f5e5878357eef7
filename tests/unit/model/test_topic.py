"""Which topics are internal, by name."""

import pytest

from sparrow.model import protocol
from sparrow.model.topic import is_group_topic, is_system_topic


@pytest.mark.parametrize(
    "name",
    [
        protocol.AUTO_CREATE_TOPIC,
        protocol.SCHEDULE_TOPIC,
        protocol.TIMER_TOPIC,
        protocol.HALF_TOPIC,
        protocol.OP_TOPIC,
        protocol.CHECK_LIMIT_TOPIC,
        protocol.TRACE_TOPIC,
        protocol.SELF_TEST_TOPIC,
        protocol.OFFSET_MOVED_TOPIC,
        "rmq_sys_REVIVE_LOG_DefaultCluster",
        "DefaultCluster_REPLY_TOPIC",
    ],
)
def test_topics_that_brokers_use_internally_are_system_topics(name):
    assert is_system_topic(name)
    assert not is_group_topic(name)


@pytest.mark.parametrize("name", ["%RETRY%billing", "%DLQ%billing"])
def test_topics_of_groups_are_no_system_topics(name):
    assert is_group_topic(name)
    assert not is_system_topic(name)


@pytest.mark.parametrize("name", ["orders", "SCHEDULE_TOPIC", "orders_rmq_sys_", "RETRY", protocol.BENCHMARK_TOPIC])
def test_topics_of_applications_are_neither(name):
    assert not is_system_topic(name)
    assert not is_group_topic(name)
