"""`BrokerMetrics`: the metrics of a broker, read from its counters when a scrape asks for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sparrow.broker.catalog.groups import SYSTEM_GROUPS
from sparrow.broker.context import Broker
from sparrow.broker.metrics.event_counters import COMMITTED, NORMAL, SendKindCounts
from sparrow.broker.metrics.sampler import BrokerSampler
from sparrow.model.protocol import PERM_READ, PERM_WRITE, RETRY_TOPIC_PREFIX
from sparrow.net.dispatcher import RequestDispatcher
from sparrow.net.listener import Listener
from sparrow.net.request_meter import NO_RESPONSE, RequestMeter, request_name, response_name
from sparrow.settings import TelemetrySettings
from sparrow.telemetry.metric import Family, HistogramValue, Metric
from sparrow.telemetry.metrics import broker as own
from sparrow.telemetry.metrics import rocketmq
from sparrow.telemetry.series_limit import OTHER, SeriesLimit
from sparrow.wire.codes import RequestCode, ResponseCode, RocketMQVersion

_REMOTING = "remoting"
_PROCESSORS: Mapping[str, frozenset[int]] = {
    "send": frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}),
    "pull": frozenset({RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE}),
    "lite_pull": frozenset({RequestCode.LITE_PULL_MESSAGE}),
    "ack": frozenset({RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE}),
    "query_message": frozenset({RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID}),
    "client_manager": frozenset({RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG}),
    "heartbeat": frozenset({RequestCode.HEART_BEAT}),
    "transaction": frozenset({RequestCode.END_TRANSACTION}),
    "consumer_manager": frozenset(
        {
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            RequestCode.QUERY_CONSUMER_OFFSET,
        }
    ),
    "reply": frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}),
}
"""The requests of RocketMQ's thread pools; all others are `admin`."""
_ADMIN_PROCESSOR = "admin"

_KEYS_PER_PART = 100
"""Groups on topics that are added up at once."""

Labels = tuple[str, ...]
Samples = list[tuple[Labels, float]]


class BrokerMetrics:
    """The metrics of one broker."""

    def __init__(
        self,
        broker: Broker,
        dispatcher: RequestDispatcher[Broker],
        listener: Listener,
        settings: TelemetrySettings,
        *,
        reports_leader: bool = True,
    ) -> None:
        """Measure a broker from now on. `reports_leader`: whether its `broker_id` says that it leads."""
        self._reports_leader = reports_leader
        self._broker, self._dispatcher, self._listener = broker, dispatcher, listener
        self.meter = dispatcher.meter = dispatcher.meter or RequestMeter()
        self.sampler = BrokerSampler(broker, interval_ms=settings.sample_interval_ms)
        self._topics: SeriesLimit[str] = SeriesLimit(settings.series_max)
        self._groups: SeriesLimit[tuple[str, str]] = SeriesLimit(settings.series_max)
        self._folded_totals: dict[tuple[Metric, Labels], float] = {}
        self.node_labels = {"cluster": broker.settings.cluster, "node_type": "broker", "node_id": broker.name}

    def start(self) -> None:
        """Start to take samples."""
        self.sampler.start()

    async def stop(self) -> None:
        """Stop to take samples."""
        await self.sampler.stop()

    def families(self) -> Iterator[Family]:
        """Yield the metrics."""
        topics, groups = self._broker.topics, self._broker.groups
        self._topics.keep(lambda topic: topic in topics)
        self._groups.keep(lambda key: groups.get(key[0]) is not None and (key[1] in topics or key[1] == OTHER))
        for metric, samples in self._all():
            yield Family(metric, samples, self.node_labels)

    def _all(self) -> Iterator[tuple[Metric, Iterable[tuple[Labels, Any]]]]:
        yield from self._sends()
        yield from self._pulls()
        yield from self._group_lags()
        yield from self._transactions()
        yield from self._requests()
        yield from self._clients()
        yield from self._storage()
        yield from self._catalog()
        yield from self._limits()

    # -- traffic ------------------------------------------------------------------------------------------------------

    def _sends(self) -> Iterator[tuple[Metric, Any]]:
        rows: list[tuple[Labels, SendKindCounts]] = []
        yield rocketmq.MESSAGES_IN, self._messages_in(rows)
        yield rocketmq.THROUGHPUT_IN, ((labels, counts.bytes) for labels, counts in rows)
        yield rocketmq.MESSAGE_SIZE, ((labels, HistogramValue(counts.sizes, counts.bytes)) for labels, counts in rows)

    def _messages_in(self, rows: list[tuple[Labels, SendKindCounts]]) -> Iterator[tuple[Labels, float]]:
        """Yield the messages, and put the rest of the counts into `rows`."""
        folded: dict[Labels, SendKindCounts] = {}
        for topic, kind, counts in self._send_counts():
            if self._topics.shows(topic):
                labels = topic, kind, self._is_system(topic)
                rows.append((labels, counts))
                yield labels, counts.messages
            else:
                folded.setdefault((OTHER, kind, "false"), SendKindCounts()).add(counts)
        for others, counts in folded.items():
            counts.messages = int(self._never_less(rocketmq.MESSAGES_IN, others, counts.messages))
            counts.bytes = int(self._never_less(rocketmq.THROUGHPUT_IN, others, counts.bytes))
            rows.append((others, counts))
            yield others, counts.messages

    def _send_counts(self) -> Iterator[tuple[str, str, SendKindCounts]]:
        """Yield the sends of each topic by kind. Normal ones are those that are of no other kind."""
        special: defaultdict[str, dict[str, SendKindCounts]] = defaultdict(dict)
        for (topic, kind), counts in self._broker.events.sends.items():
            special[topic][kind] = counts
        for topic, (messages, size_bytes, calls) in self._broker.counters.sent_by_topic():
            kinds = special.get(topic, {})
            normal = SendKindCounts()
            large = kinds.get(NORMAL, normal)
            others = [counts for kind, counts in kinds.items() if kind != NORMAL]
            normal.messages = messages - sum(each.messages for each in others)
            normal.bytes = size_bytes - sum(each.bytes for each in others)
            normal.calls = calls - sum(each.calls for each in others)
            normal.sizes = [normal.calls - sum(large.sizes), *large.sizes[1:]]
            if normal.calls > 0:
                yield topic, NORMAL, normal
            for kind, counts in kinds.items():
                if kind not in (NORMAL, COMMITTED):
                    whole = SendKindCounts()
                    whole.messages, whole.bytes, whole.calls = counts.messages, counts.bytes, counts.calls
                    whole.sizes = [counts.calls - sum(counts.sizes), *counts.sizes[1:]]
                    yield topic, kind, whole

    def _pulls(self) -> Iterator[tuple[Metric, Any]]:
        messages: Counter[Labels] = Counter()
        size_bytes: Counter[Labels] = Counter()
        for number, ((topic, group), (count, total_bytes, _)) in enumerate(self._broker.counters.pulled_by_group()):
            if number % _KEYS_PER_PART == 0:
                yield rocketmq.MESSAGES_OUT, ()  # others have a turn
            labels = self._pull_labels(group, topic)
            messages[labels] += count
            size_bytes[labels] += total_bytes
        yield rocketmq.MESSAGES_OUT, self._totals(rocketmq.MESSAGES_OUT, messages)
        yield rocketmq.THROUGHPUT_OUT, self._totals(rocketmq.THROUGHPUT_OUT, size_bytes)
        retries: Counter[Labels] = Counter()
        for (topic, group), (count, _, _) in self._broker.counters.sent_back_by_group():
            retries[self._folded(group, topic)] += count
        yield own.RETRIES, self._totals(own.RETRIES, retries)
        yield own.EMPTY_PULLS, [((), self._broker.counters.totals.pulls_missed)]
        dead: Counter[Labels] = Counter()
        for (group, topic), count in list(self._broker.events.dead_letters.items()):
            dead[(*self._folded(group, topic), self._is_system(topic))] += count
        yield rocketmq.DEAD_LETTERS, self._totals(rocketmq.DEAD_LETTERS, dead)

    def _pull_labels(self, group: str, topic: str) -> Labels:
        shown_group, shown_topic = self._folded(group, topic)
        return shown_topic, shown_group, self._is_system(topic, group), _is_retry(topic)

    def _folded(self, group: str, topic: str) -> tuple[str, str]:
        """Return the labels of a group on a topic."""
        return (group, topic) if self._groups.shows((group, topic)) else (OTHER, OTHER)

    def _totals(self, metric: Metric, totals: Counter[Labels]) -> Samples:
        return [
            (labels, self._never_less(metric, labels, value) if OTHER in labels else value)
            for labels, value in totals.items()
        ]

    def _never_less(self, metric: Metric, labels: Labels, value: float) -> float:
        """Keep a sum of several topics from going down when one of them is deleted."""
        key = metric, labels
        value = self._folded_totals[key] = max(value, self._folded_totals.get(key, 0))
        return value

    def _is_system(self, topic: str, group: str = "") -> str:
        return "true" if self._broker.topics.is_system(topic) or group in SYSTEM_GROUPS else "false"

    # -- groups and transactions --------------------------------------------------------------------------------------

    def _group_lags(self) -> Iterator[tuple[Metric, Any]]:
        sample = self.sampler.sample
        lag: Counter[Labels] = Counter()
        in_flight: Counter[Labels] = Counter()
        ages: dict[Metric, dict[Labels, int]] = {rocketmq.LAG_LATENCY: {}, rocketmq.QUEUEING_LATENCY: {}}
        for number, each in enumerate(sample.lags):
            if number % _KEYS_PER_PART == 0:
                yield rocketmq.LAG_MESSAGES, ()  # others have a turn
            if each.topic not in self._broker.topics:
                continue  # deleted after the sample
            shown = self._folded(each.group, each.topic)
            labels = (*shown, _is_retry(each.topic), self._is_system(each.topic, each.group))
            lag[labels] += each.lag
            in_flight[labels] += each.in_flight
            for metric, age_ms in ((rocketmq.LAG_LATENCY, each.lag_ms), (rocketmq.QUEUEING_LATENCY, each.queueing_ms)):
                if age_ms is not None:
                    ages[metric][labels] = max(age_ms, ages[metric].get(labels, 0))
        yield rocketmq.LAG_MESSAGES, list(lag.items())
        yield rocketmq.INFLIGHT_MESSAGES, list(in_flight.items())
        yield rocketmq.READY_MESSAGES, [(labels, count - in_flight[labels]) for labels, count in lag.items()]
        for metric, by_labels in ages.items():
            yield metric, list(by_labels.items())

    def _transactions(self) -> Iterator[tuple[Metric, Any]]:
        events = self._broker.events
        yield rocketmq.COMMITTED_TRANSACTIONS, self._by_topic(rocketmq.COMMITTED_TRANSACTIONS, events.committed)
        yield rocketmq.ROLLED_BACK_TRANSACTIONS, self._by_topic(rocketmq.ROLLED_BACK_TRANSACTIONS, events.rolled_back)
        yield rocketmq.HALF_MESSAGES, self._by_topic(rocketmq.HALF_MESSAGES, self.sampler.sample.half_messages)
        shown = [(topic, each.value) for topic, each in list(events.finish_ms.items()) if self._topics.shows(topic)]
        yield rocketmq.FINISH_LATENCY, [((topic,), value) for topic, value in shown]

    def _by_topic(self, metric: Metric, counts: Mapping[str, int]) -> Samples:
        totals: Counter[Labels] = Counter()
        for topic, count in list(counts.items()):
            if topic in self._broker.topics:  # a half message may outlive its topic
                totals[(topic if self._topics.shows(topic) else OTHER,)] += count
        return self._totals(metric, totals) if metric.kind == "counter" else list(totals.items())

    # -- requests and clients -----------------------------------------------------------------------------------------

    def _requests(self) -> Iterator[tuple[Metric, Any]]:
        latencies = self.meter.by_names(_rpc_labels)
        for (code, is_over), histogram in list(self._broker.long_polls.durations.items()):
            nothing = ResponseCode.PULL_NOT_FOUND if code != RequestCode.POP_MESSAGE else ResponseCode.POLLING_TIMEOUT
            names = request_name(code), response_name(nothing if is_over else ResponseCode.SUCCESS)
            latencies[_REMOTING, *names, "true", "success"] = histogram.value
        yield rocketmq.RPC_LATENCY, list(latencies.items())
        in_progress = self._dispatcher.in_progress()
        waiting = {name: sum(in_progress[code] for code in codes) for name, codes in _PROCESSORS.items()}
        waiting[_ADMIN_PROCESSOR] = in_progress.total() - sum(waiting.values())
        yield rocketmq.PROCESSOR_WATERMARK, [((name,), count) for name, count in waiting.items()]
        yield own.REQUESTS_IN_PROGRESS, [((), in_progress.total())]
        yield own.LONG_POLLS, [((), self._broker.long_polls.count)]

    def _clients(self) -> Iterator[tuple[Metric, Any]]:
        clients = self._broker.clients
        producers: Counter[Labels] = Counter()
        for members in clients.producer_groups().values():
            for member in members:
                producers[member.language.name.lower(), _version_name(member.version), _REMOTING] += 1
        yield rocketmq.PRODUCER_CONNECTIONS, list(producers.items())
        consumers: Counter[Labels] = Counter()
        for group in clients.consumer_groups():
            online = clients.consumers(group)
            for member in online.members.values() if online is not None else ():
                shown = group if self._groups.shows((group, OTHER)) else OTHER
                kind = member.language.name.lower(), _version_name(member.version), _REMOTING
                mode = "pop" if online is not None and online.consume_type == "CONSUME_POP" else "push"
                if online is not None and online.consume_type == "CONSUME_ACTIVELY":
                    mode = "pull"
                consumers[(shown, *kind, mode, self._is_system("", group))] += 1
        yield rocketmq.CONSUMER_CONNECTIONS, list(consumers.items())
        yield own.CONNECTIONS, [((), len(self._listener.channels))]

    # -- store and limits ---------------------------------------------------------------------------------------------

    def _storage(self) -> Iterator[tuple[Metric, Any]]:
        store, sample = self._broker.store, self.sampler.sample
        files = store.files
        if files is not None:
            labels = "local", "disk"
            yield rocketmq.STORAGE_SIZE, [(labels, store.written - files.first_offset)]
            yield rocketmq.FLUSH_BEHIND, [(labels, max(0, store.written - files.durable_offset))]
            yield rocketmq.DISPATCH_BEHIND, [(labels, 0)]
            if sample.oldest_message_ms is not None:
                age_ms = max(0, self._broker.now_ms() - sample.oldest_message_ms)
                yield rocketmq.RESERVE_TIME, [(labels, age_ms)]
            yield own.FLUSH_SECONDS, [((), files.flush_seconds.value)]
            yield own.DISK_REFUSE_RATIO, [((), files.settings.disk_refuse_ratio)]
        for metric, value in (
            (own.DISK_USED_RATIO, sample.disk_used_ratio),
            (own.DISK_FREE, sample.disk_free_bytes),
            (own.DELAYED_MESSAGES, sample.delayed_messages),
        ):
            if value is not None:
                yield metric, [((), value)]
        yield own.STORED_MESSAGES, self._by_topic(own.STORED_MESSAGES, sample.stored_messages)
        yield own.STAGED_BYTES, [((), self._broker.stages.stored_bytes)]
        yield own.IN_FLIGHT_BATCHES, [((), len(self._broker.pop_state.in_flight))]

    def _catalog(self) -> Iterator[tuple[Metric, Any]]:
        broker, events = self._broker, self._broker.events
        yield rocketmq.TOPIC_NUMBER, [((), sum(1 for _ in broker.topics))]
        yield rocketmq.GROUP_NUMBER, [((), sum(1 for _ in broker.groups))]
        yield rocketmq.BROKER_PERMISSION, [((), PERM_READ | PERM_WRITE)]
        creations = {
            rocketmq.TOPIC_CREATE_TIME: events.topic_creations,
            rocketmq.GROUP_CREATE_TIME: events.group_creations,
        }
        for metric, table in creations.items():
            # Names of system topics and groups are refused, so `is_system` is false.
            yield metric, [((status, "false"), histogram.value) for status, histogram in list(table.items())]

    def _limits(self) -> Iterator[tuple[Metric, Any]]:
        refusals = {
            **self._listener.limits_hit(),
            "long_polls": self._broker.long_polls.refused,
            "queue_locks": self._broker.queue_locks.refused,
            "topics": self._broker.topics.refused,
            "topic_queues": self._broker.topics.refused_queues,
            "groups": self._broker.groups.refused,
        }
        yield own.LIMITS_HIT, [((name,), count) for name, count in refusals.items()]
        yield own.ACCESS_REFUSALS, self._listener.access_refusals()
        yield own.HELD_BYTES, self._listener.budgets.held()
        yield own.LOOP_HOLDS, self._listener.watchdog.values()
        limits: dict[str, SeriesLimit[Any]] = {"topic": self._topics, "group": self._groups}
        yield own.FOLDED_SERIES, [((kind,), limit.folded_count) for kind, limit in limits.items()]
        yield own.DROPPED_SERIES, [((kind,), limit.dropped) for kind, limit in limits.items()]
        sample = self.sampler.sample
        if sample.taken_ms:
            yield own.SNAPSHOT_AGE, [((), max(0, self._broker.now_ms() - sample.taken_ms) / 1000)]
            yield own.SNAPSHOT_SECONDS, [((), sample.duration_s)]
        if self._reports_leader:
            yield own.IS_LEADER, [((), int(self._broker.broker_id == 0))]


def _rpc_labels(code: int, response_code: int) -> Labels:
    result = "oneway" if response_code == NO_RESPONSE else "success"
    if response_code == ResponseCode.SYSTEM_ERROR:
        result = "process_request_failed"
    return _REMOTING, request_name(code), response_name(response_code), "false", result


def _version_name(version: int) -> str:
    try:
        return RocketMQVersion(version).name.lower()
    except ValueError:
        return "unknown"


def _is_retry(topic: str) -> str:
    return "true" if topic.startswith(RETRY_TOPIC_PREFIX) else "false"
