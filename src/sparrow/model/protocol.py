"""Names and numbers that the RocketMQ protocol fixes, each written once, and the few that Sparrow adds to it.

The names follow RocketMQ's `MessageConst`, `MixAll`, `TopicValidator` and `PermName`. This module imports nothing.
"""

from __future__ import annotations

# -- properties of a message: set by its sender -----------------------------------------------------------------------

PROPERTY_KEYS = "KEYS"
"""Index keys, separated by spaces."""
PROPERTY_TAGS = "TAGS"
PROPERTY_UNIQUE_KEY = "UNIQ_KEY"
"""The message id that the sender assigns."""
PROPERTY_WAIT_STORED = "WAIT"
"""`false`: acknowledge before the message is durable."""
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
"""The message group: messages with one key go to one queue."""
PROPERTY_DELAY_LEVEL = "DELAY"
PROPERTY_TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
"""Delivery time, in milliseconds since the epoch."""
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELAY_S = "TIMER_DELAY_SEC"
PROPERTY_TRANSACTION_PREPARED = "TRAN_MSG"
"""`true`: a half message."""
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_CHECK_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""Age below which a half message is not checked back."""
PROPERTY_CORRELATION_ID = "CORRELATION_ID"
PROPERTY_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_REPLY_TTL = "TTL"
PROPERTY_MESSAGE_TYPE = "MSG_TYPE"
PROPERTY_TRACE_SWITCH = "TRACE_ON"
PROPERTY_REGION = "MSG_REGION"

# -- properties of a message: set by brokers --------------------------------------------------------------------------

PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
"""The topic of a message that waits in a system topic (delay, half message)."""
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
"""The original topic of a message in a retry or dead-letter topic."""
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_TIMER_OUT_MS = "TIMER_OUT_MS"
"""Due time of a message in the timer topic."""
PROPERTY_TIMER_CANCEL_KEY = "TIMER_DEL_UNIQKEY"
"""Marks a record that cancels a timer message, and names that message."""
PROPERTY_TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
PROPERTY_POP_CHECKPOINT = "POP_CK"
"""The receipt handle of a popped message."""
PROPERTY_FIRST_POP_MS = "1ST_POP_TIME"
PROPERTY_PRIORITY_NUMBER = "_SYS_MSG_PRIORITY_"
"""The priority of a message since 5.4: 0 or more, the higher the more urgent."""

# -- properties that Sparrow adds -------------------------------------------------------------------------------------

PROPERTY_PRIORITY = "PRIORITY"
"""high, middle or low."""
PROPERTY_PRODUCER_ID = "__PID"
"""With `PROPERTY_SEQUENCE`: identifies one send, so that the broker stores it once."""
PROPERTY_SEQUENCE = "__SEQ"
PROPERTY_REFERENCE = "__REF"
"""The position of the message that a reference record stands for."""
PROPERTY_REFERENCE_POSITION = "__REF_AT"
PROPERTY_RESENT = "RESENT"
PROPERTY_TIMER_ROLLED_FROM = "TIMER_ROLLED_FROM"
PROPERTY_DLQ_REASON = "DLQ_REASON"
"""Of a retry or a dead letter: why the last attempt to handle the message failed."""
PROPERTY_DLQ_ERROR_TYPE = "DLQ_ERROR_TYPE"
"""The type of the exception that the handler raised."""
PROPERTY_DLQ_TRACEBACK = "DLQ_TRACEBACK"
"""Of a dead letter: the end of the traceback."""
PROPERTY_DLQ_CONSUMER = "DLQ_CONSUMER"
"""The client id of the consumer that failed."""
PROPERTY_DLQ_ATTEMPT = "DLQ_ATTEMPT"
"""The number of the attempt that failed; the first is 1."""

# -- topics -----------------------------------------------------------------------------------------------------------

RETRY_TOPIC_PREFIX = "%RETRY%"
"""Followed by the consumer group: the retry topic of the group."""
DLQ_TOPIC_PREFIX = "%DLQ%"
"""Followed by the consumer group: the dead-letter topic of the group."""
AUTO_CREATE_TOPIC = "TBW102"
"""The template of topics that a send creates."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Delayed messages; queue n holds those of delay level n + 1."""
TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Messages with a delivery time."""
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_LIMIT_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages whose producer did not answer the last check-back."""
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC = "BenchmarkTest"
"""RocketMQ's brokers create it with a thousand queues, used or not."""
HEARTBEAT_SYNC_TOPIC = "DefaultHeartBeatSyncerTopic"
"""The topic through which RocketMQ's proxies share their clients."""
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
REVIVE_TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"
"""Followed by the cluster: the journal of popped messages."""
BROKER_SYNC_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Topics through which the members of a broker group find each other."""
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"
"""After the cluster: the topic of replies."""

# -- groups -----------------------------------------------------------------------------------------------------------

TOOLS_GROUP = "TOOLS_CONSUMER"
"""The group of RocketMQ's tools, which brokers accept without a configuration; also of a consumer without a group."""
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""The group under which RocketMQ's brokers read half messages."""

# -- subscriptions ----------------------------------------------------------------------------------------------------

SUBSCRIBE_ALL = "*"
EXPRESSION_TAG = "TAG"
EXPRESSION_SQL92 = "SQL92"

# -- brokers and name servers -----------------------------------------------------------------------------------------

MASTER_BROKER_ID = 0
"""The id of the master in its broker group; slaves have higher ones."""
DEFAULT_REGION = "DefaultRegion"
PULL_MESSAGES_DEFAULT = 32
"""Most messages that a broker returns to a pull, unless it is configured otherwise."""
ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""KV namespace of ordered topics: topic to the queues that producers use, in order, as in `broker-a:4;broker-b:4`."""

# -- permission bits of a topic ---------------------------------------------------------------------------------------

PERM_PRIORITY = 8
PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1
