"""Runtime statistics, settings and maintenance requests of the broker.

RocketMQ's tools look these tables up by name, so the names are RocketMQ's. Figures that are not measured are left out;
those of thread pools are 0, because requests do not wait for any.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
from collections.abc import Callable, Mapping

from sparrow import __version__
from sparrow.broker.context import Broker
from sparrow.broker.counters import Rates, Totals, Traffic, TrafficCounters, WindowCount, WindowCounts
from sparrow.broker.query.store_time import store_ms_of
from sparrow.model.errors import Refused
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.settings import GIB
from sparrow.wire import bodies
from sparrow.wire.bodies import DataVersion, KvTable
from sparrow.wire.codes import ADVERTISED_VERSION, RequestCode, ResponseCode, RocketMQVersion
from sparrow.wire.headers import EmptyHeader, GetBrokerConfigResponse, GetBrokerStats

_QUEUE_ENTRY_BYTES = 20
_SEND_CODES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_NO_THREAD_POOLS = {
    f"{pool}ThreadPoolQueue{figure}": "0"
    for pool in ("send", "pull", "query", "ack")
    for figure in ("Size", "HeadWaitTimeMills")
}
_NO_TIMER = {
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
}
"""Delayed messages are indexed when they are stored, so nothing lags behind."""


# -- runtime statistics -----------------------------------------------------------------------------------------------


async def runtime_statistics(_request: EmptyHeader, broker: Broker, _call: RequestContext) -> HandlerResponse:
    table = {
        "brokerActive": "true",
        "brokerVersion": str(ADVERTISED_VERSION),
        "brokerVersionDesc": RocketMQVersion(ADVERTISED_VERSION).name,
        "bootTimestamp": str(broker.started_ms),
        "runtime": _duration(broker.now_ms() - broker.started_ms),
        **_traffic(broker.counters, broker.now_ms()),
        **await _storage(broker),
        **_NO_THREAD_POOLS,
        **_NO_TIMER,
        "pageCacheLockTimeMills": "0",
        "heldPulls": str(broker.long_polls.count),  # Sparrow's own names from here on; tools show every entry
        "clientConnections": str(broker.clients.connection_count),
        **_send_latency(broker),
        "halfMessages": str(sum((await broker.transactions.count_by_topic()).values())),
        "currentTimeMillis": str(broker.now_ms()),
        "sparrowVersion": __version__,
        **await asyncio.to_thread(open_files_figures),
    }
    return HandlerResponse.of(KvTable(dict(sorted(table.items()))))


def _traffic(counters: TrafficCounters, now_ms: int) -> dict[str, str]:
    def rates(of: Callable[[Totals], int]) -> str:
        return _spaced(counters.rates(now_ms, of))

    totals, midnight_totals = counters.totals, counters.midnight_totals
    return {
        "putTps": rates(lambda totals: totals.messages_sent),
        "getFoundTps": rates(lambda totals: totals.pulls_found),
        "getMissTps": rates(lambda totals: totals.pulls_missed),
        "getTotalTps": rates(lambda totals: totals.pulls_found + totals.pulls_missed),
        "getTransferredTps": rates(lambda totals: totals.messages_pulled),
        "getTransferedTps": rates(lambda totals: totals.messages_pulled),  # the spelling of mqadmin 4.9
        "putMessageTimesTotal": str(totals.messages_sent),
        "putMessageSizeTotal": str(totals.bytes_sent),
        "putMessageAverageSize": str(totals.bytes_sent / totals.messages_sent if totals.messages_sent else 0.0),
        "msgPutTotalYesterdayMorning": str(midnight_totals.yesterday.messages_sent),
        "msgPutTotalTodayMorning": str(midnight_totals.today.messages_sent),
        "msgPutTotalTodayNow": str(totals.messages_sent),
        "msgGetTotalYesterdayMorning": str(midnight_totals.yesterday.messages_pulled),
        "msgGetTotalTodayMorning": str(midnight_totals.today.messages_pulled),
        "msgGetTotalTodayNow": str(totals.messages_pulled),
    }


async def _storage(broker: Broker) -> dict[str, str]:
    store = broker.store
    files, written = store.files, store.written
    if files is None:  # a database has its own tools for disk usage
        return {"commitLogMinOffset": "0", "commitLogMaxOffset": str(written), "dispatchBehindBytes": "0"}
    disk = await asyncio.to_thread(shutil.disk_usage, files.path)
    ratio = str(disk.used / (disk.used + disk.free))
    oldest = await store.record_at(files.first_offset)
    return {
        "commitLogMinOffset": str(files.first_offset),
        "commitLogMaxOffset": str(written),
        "commitLogDiskRatio": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": f"Total : {disk.total / GIB:.1f} GiB, Free : {disk.free / GIB:.1f} GiB.",
        "earliestMessageTimeStamp": str(store_ms_of(oldest) if oldest is not None else -1),
        "diskFreeBytes": str(disk.free),
        "diskRefuseRatio": str(files.settings.disk_refuse_ratio),
        "remainHowManyDataToFlush": f"{written - files.durable_offset} B",
        "dispatchBehindBytes": "0",  # consume queues are written together with the log
    }


def _send_latency(broker: Broker) -> dict[str, str]:
    """Return how many sends took how long since the start: `bound in ms:count`, not added up."""
    if broker.requests is None:
        return {}
    sends = broker.requests.successes(_SEND_CODES)
    pairs = zip((*sends.bounds, "+Inf"), sends.counts, strict=True)
    return {"sendLatency": " ".join(f"{bound}:{count}" for bound, count in pairs)}


def open_files_figures() -> dict[str, str]:
    """Return how many files and sockets this process has open, and how many it may open; empty where it is unknown."""
    try:
        return {
            "openFiles": str(len(os.listdir("/proc/self/fd"))),
            "openFilesMax": str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        }
    except OSError:
        return {}


def _spaced(rates: Rates) -> str:
    return " ".join(map(str, rates))


def _duration(passed_ms: int) -> str:
    minutes, seconds = divmod(passed_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


# -- statistics of a topic or a group ---------------------------------------------------------------------------------

TrafficQuery = Callable[[TrafficCounters, str, int], WindowCounts | None]


def _of_topic(pick: Callable[[Traffic], WindowCounts]) -> TrafficQuery:
    def measured(counters: TrafficCounters, key: str, now_ms: int) -> WindowCounts | None:
        found = counters.topic_traffic(key, now_ms)
        return pick(found) if found is not None else None

    return measured


def _of_group(
    find: Callable[[TrafficCounters, str, str, int], Traffic | None], pick: Callable[[Traffic], WindowCounts]
) -> TrafficQuery:
    def measured(counters: TrafficCounters, key: str, now_ms: int) -> WindowCounts | None:
        topic, _, group = key.partition("@")
        found = find(counters, group, topic, now_ms)
        return pick(found) if found is not None else None

    return measured


STATISTICS: Mapping[str, TrafficQuery] = {
    "TOPIC_PUT_NUMS": _of_topic(lambda traffic: traffic.messages),
    "TOPIC_PUT_SIZE": _of_topic(lambda traffic: traffic.bytes),
    "GROUP_GET_NUMS": _of_group(TrafficCounters.group_traffic, lambda traffic: traffic.messages),
    "GROUP_GET_SIZE": _of_group(TrafficCounters.group_traffic, lambda traffic: traffic.bytes),
    "SNDBCK_PUT_NUMS": _of_group(TrafficCounters.send_back_traffic, lambda traffic: traffic.messages),
}


async def view_statistic(request: GetBrokerStats, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return one statistic of a topic (key: its name) or of a group (key: `topic@group`)."""
    measured = STATISTICS.get(request.name)
    if measured is None:
        remark = f"statistic {request.name[:80]!r} is unknown: use one of {', '.join(STATISTICS)}"
        return HandlerResponse(code=ResponseCode.SYSTEM_ERROR, remark=remark)
    found = measured(broker.counters, request.key, broker.now_ms())
    if found is None:
        remark = f"no {request.name} for {request.key[:255]!r}: it had no messages in the last 24 hours"
        return HandlerResponse(code=ResponseCode.SYSTEM_ERROR, remark=remark)
    return HandlerResponse.of(bodies.BrokerStats(*map(_shown, found)))


def _shown(figure: WindowCount) -> bodies.StatsItem:
    return bodies.StatsItem(figure.sum, figure.rate, figure.average)


# -- settings ---------------------------------------------------------------------------------------------------------


async def get_settings(_request: EmptyHeader, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return the settings that have a counterpart in RocketMQ's configuration, as Java properties."""
    text = "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(_settings(broker).items()))
    # Settings do not change while the broker runs, so the version is the start time.
    version = bodies.write(DataVersion(0, broker.started_ms)).decode()
    return HandlerResponse(GetBrokerConfigResponse(version), text.encode())


def _settings(broker: Broker) -> dict[str, str]:
    own, store = broker.settings, broker.store
    settings_table = {
        "brokerName": own.name,
        "brokerClusterName": own.cluster,
        "brokerId": str(broker.broker_id),
        "brokerIP1": broker.address.host,
        "listenPort": str(broker.address.port),
        "namesrvAddr": own.name_servers,
        "autoCreateTopicEnable": _java_boolean(own.auto_create_topics),
        "autoCreateSubscriptionGroup": _java_boolean(own.auto_create_groups),
        "defaultTopicQueueNums": str(own.topic_queues),
        "registerNameServerPeriod": str(own.register_interval_ms),
        "maxMessageSize": str(store.message_bytes_max),
    }
    if store.files is None:
        return settings_table
    path, log_settings, *_ = store.files
    return settings_table | {
        "storePathRootDir": str(path),
        "mappedFileSizeCommitLog": str(log_settings.segment_bytes),
        "mappedFileSizeConsumeQueue": str(log_settings.queue_file_entries * _QUEUE_ENTRY_BYTES),
        "maxHashSlotNum": str(log_settings.index_slots),
        "maxIndexNum": str(log_settings.index_entries),
        "flushDiskType": "SYNC_FLUSH" if log_settings.flush == "sync" else "ASYNC_FLUSH",
        "flushIntervalCommitLog": str(log_settings.flush_interval_ms),
        "syncFlushTimeout": str(log_settings.flush_timeout_ms),
        "fileReservedTime": f"{log_settings.retention_hours:g}",
        "deleteWhen": f"{log_settings.retention_hour_of_day:02d}",
        "diskMaxUsedSpaceRatio": f"{log_settings.disk_clean_ratio * 100:g}",
    }


def _java_boolean(claim: bool) -> str:
    return "true" if claim else "false"


def _escaped(value: str) -> str:
    """Escape a value for Java's `Properties`: ASCII, with a backslash before special characters."""
    units = memoryview(value.encode("utf-16-be", "surrogatepass"))
    escaped = []
    for at in range(0, len(units), 2):
        unit = units[at] << 8 | units[at + 1]
        if unit == 0x5C or (unit == 0x20 and at == 0):
            escaped.append("\\" + chr(unit))
        else:
            escaped.append(chr(unit) if 0x20 <= unit < 0x7F else f"\\u{unit:04X}")
    return "".join(escaped)


async def change_settings(_request: EmptyHeader, broker: Broker, _call: RequestContext) -> EmptyHeader:
    raise Refused("settings cannot be changed while the broker runs: change the configuration and restart it")


# -- maintenance ------------------------------------------------------------------------------------------------------


async def delete_expired(_request: EmptyHeader, broker: Broker, _call: RequestContext) -> EmptyHeader:
    """Delete expired messages now, whatever the hour."""
    await broker.store.trim()
    return EmptyHeader()


async def accept_cleanup(_request: EmptyHeader, _broker: Broker, _call: RequestContext) -> EmptyHeader:
    """Accept the request without doing anything: queue files are deleted with their log segments or their topic."""
    return EmptyHeader()


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.GET_BROKER_RUNTIME_INFO: runtime_statistics,
    RequestCode.VIEW_BROKER_STATS_DATA: view_statistic,
    RequestCode.GET_BROKER_CONFIG: get_settings,
    RequestCode.UPDATE_BROKER_CONFIG: change_settings,
    RequestCode.DELETE_EXPIRED_COMMITLOG: delete_expired,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: accept_cleanup,
    RequestCode.CLEAN_UNUSED_TOPIC: accept_cleanup,
}
