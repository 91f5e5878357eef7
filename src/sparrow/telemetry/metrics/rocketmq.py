"""The metrics of a broker that RocketMQ 5 has too, under the names and with the labels that its exporter writes."""

from __future__ import annotations

from sparrow.telemetry.metric import Metric

_TOPIC = ("topic", "message_type", "is_system")
_GROUP = ("consumer_group", "topic", "is_retry", "is_system")
_STORAGE = ("storage_type", "storage_medium")
_CREATION = ("invocation_status", "is_system")
_SIZE_BOUNDS = (1024, 4096, 512 * 1024, 1 << 20, 2 << 20, 4 << 20)
_CREATION_BOUNDS_MS = (10, 100, 1000, 3000, 5000)
RPC_BOUNDS_MS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
FINISH_BOUNDS = (5, 60, 600, 3600, 43_200, 86_400)

MESSAGES_IN = Metric("rocketmq_messages_in_total", "counter", "Messages that producers sent.", _TOPIC, "messages")
MESSAGES_OUT = Metric(
    "rocketmq_messages_out_total",
    "counter",
    "Messages that went out to consumers, by pull and pop.",
    ("topic", "consumer_group", "is_system", "is_retry"),
    "messages",
)
THROUGHPUT_IN = Metric(
    "rocketmq_throughput_in_total", "counter", "Bytes of bodies that producers sent.", _TOPIC, "bytes"
)
THROUGHPUT_OUT = Metric(
    "rocketmq_throughput_out_total",
    "counter",
    "Bytes of records that went out to consumers.",
    MESSAGES_OUT.labels,
    "bytes",
)
MESSAGE_SIZE = Metric(
    "rocketmq_message_size", "histogram", "Size of the body of a send; a batch is one.", _TOPIC, "bytes", _SIZE_BOUNDS
)
TOPIC_CREATE_TIME = Metric(
    "rocketmq_topic_create_execution_time_milliseconds",
    "histogram",
    "Time to create or change a topic.",
    _CREATION,
    "milliseconds",
    _CREATION_BOUNDS_MS,
)
GROUP_CREATE_TIME = Metric(
    "rocketmq_consumer_group_create_execution_time_milliseconds",
    "histogram",
    "Time to create or change a consumer group.",
    _CREATION,
    "milliseconds",
    _CREATION_BOUNDS_MS,
)
PRODUCER_CONNECTIONS = Metric(
    "rocketmq_producer_connections",
    "gauge",
    "Producers that are connected, a client once for each of its groups.",
    ("language", "version", "protocol_type"),
    "clients",
)
CONSUMER_CONNECTIONS = Metric(
    "rocketmq_consumer_connections",
    "gauge",
    "Consumers that are connected, by group.",
    ("consumer_group", "language", "version", "protocol_type", "consume_mode", "is_system"),
    "clients",
)
LAG_MESSAGES = Metric(
    "rocketmq_consumer_lag_messages",
    "gauge",
    "Messages that the group has not committed, by the last sample.",
    _GROUP,
    "messages",
)
LAG_LATENCY = Metric(
    "rocketmq_consumer_lag_latency_milliseconds",
    "gauge",
    "Age of the oldest message that the group has not committed; left out where it was not read.",
    _GROUP,
    "milliseconds",
)
INFLIGHT_MESSAGES = Metric(
    "rocketmq_consumer_inflight_messages",
    "gauge",
    "Messages that consumers have and that are not acknowledged or committed.",
    _GROUP,
    "messages",
)
READY_MESSAGES = Metric(
    "rocketmq_consumer_ready_messages", "gauge", "Messages that no consumer of the group has yet.", _GROUP, "messages"
)
QUEUEING_LATENCY = Metric(
    "rocketmq_consumer_queueing_latency_milliseconds",
    "gauge",
    "Age of the oldest message that no consumer of the group has yet; left out where it was not read.",
    _GROUP,
    "milliseconds",
)
DEAD_LETTERS = Metric(
    "rocketmq_send_to_dlq_messages_total",
    "counter",
    "Messages that became dead letters.",
    ("consumer_group", "topic", "is_system"),
    "messages",
)
COMMITTED_TRANSACTIONS = Metric(
    "rocketmq_commit_messages_total", "counter", "Half messages that were committed.", ("topic",), "messages"
)
ROLLED_BACK_TRANSACTIONS = Metric(
    "rocketmq_rollback_messages_total", "counter", "Half messages that were rolled back.", ("topic",), "messages"
)
HALF_MESSAGES = Metric(
    "rocketmq_half_messages", "gauge", "Half messages whose transaction is not ended.", ("topic",), "messages"
)
FINISH_LATENCY = Metric(
    "rocketmq_finish_message_latency_milliseconds",
    "histogram",
    "Time from a half message to its end, in milliseconds; the bounds are RocketMQ's and look like seconds.",
    ("topic",),
    "milliseconds",
    FINISH_BOUNDS,
)
PROCESSOR_WATERMARK = Metric(
    "rocketmq_processor_watermark",
    "gauge",
    "Requests in progress, by RocketMQ's names for its thread pools; parked requests are not counted.",
    ("processor",),
    "requests",
)
BROKER_PERMISSION = Metric(
    "rocketmq_broker_permission", "gauge", "6: the broker may be read and written; 4: only read."
)
TOPIC_NUMBER = Metric("rocketmq_topic_number", "gauge", "Topics, system topics included.", (), "topics")
GROUP_NUMBER = Metric("rocketmq_consumer_group_number", "gauge", "Consumer groups.", (), "groups")
RPC_LATENCY = Metric(
    "rocketmq_rpc_latency_milliseconds",
    "histogram",
    "Time from the arrival of a request to its response, by names of codes; unknown codes are `unknown`.",
    ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
    "milliseconds",
    RPC_BOUNDS_MS,
)
STORAGE_SIZE = Metric("rocketmq_storage_size_bytes", "gauge", "Bytes of the commit log.", _STORAGE, "bytes")
FLUSH_BEHIND = Metric(
    "rocketmq_storage_flush_behind_bytes", "gauge", "Bytes that are written and not yet flushed.", _STORAGE, "bytes"
)
DISPATCH_BEHIND = Metric(
    "rocketmq_storage_dispatch_behind_bytes",
    "gauge",
    "Bytes without consume-queue entries: always 0, as both are written together.",
    _STORAGE,
    "bytes",
)
RESERVE_TIME = Metric(
    "rocketmq_storage_message_reserve_time_milliseconds",
    "gauge",
    "Age of the oldest stored message.",
    _STORAGE,
    "milliseconds",
)

ROCKETMQ_METRICS = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
