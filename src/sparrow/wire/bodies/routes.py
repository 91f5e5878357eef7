"""Bodies of routes, clusters, and broker registrations.

A compressed registration is one zlib stream, all integers 4 bytes:

    length + data version (JSON)
    count of topics, each: length + "name read write perm filterType[ attributes as JSON]"
    length + filter servers (JSON)
    since 5.0: count of queue mappings, each: length + JSON; ignored, they belong to static topics
"""

# ruff: noqa: RUF012  (msgspec gives every struct an empty list or dict of its own)
from __future__ import annotations

import zlib
from struct import Struct

import msgspec

from sparrow.model.errors import BadRequest, ProtocolError
from sparrow.wire.bodies.codec import Body, DataVersion, read_request, write
from sparrow.wire.bodies.topics import TopicConfig, TopicTable
from sparrow.wire.compression import decompress

REGISTRATION_BYTES_MAX = 64 * 1024 * 1024
"""About half a million topics; a registration that decompresses to more is refused."""

_INT = Struct(">i")


class BrokerData(Body, frozen=True):
    """The members of one broker group. Broker id 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = {}
    enable_acting_master: bool = False


class QueueData(Body, frozen=True):
    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class RouteData(Body, frozen=True):
    """The brokers and queues of a topic."""

    broker_datas: list[BrokerData] = []
    queue_datas: list[QueueData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    """Absent unless set: for clients, an empty text has another meaning."""


class ClusterTable(Body, frozen=True):
    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class BrokerMembers(Body, frozen=True):
    """One broker group, as brokers request it (901)."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = {}


class BrokerMemberGroup(Body, frozen=True):
    broker_member_group: BrokerMembers


class KvTable(Body, frozen=True):
    """Keys and texts: broker runtime data (28), a KV namespace (219), the response to a registration (103)."""

    table: dict[str, str] = {}


class BrokerRegistration(Body, frozen=True):
    """All topics of a broker, for a name server."""

    topics: TopicTable = msgspec.field(default_factory=TopicTable, name="topicConfigSerializeWrapper")
    filter_server_list: list[str] = []


def read_registration(body: bytes | memoryview, *, is_compressed: bool) -> BrokerRegistration:
    """Decode a registration, or raise `BadRequest`."""
    if not is_compressed:
        return read_request(BrokerRegistration, body) if len(body) else BrokerRegistration()
    try:
        expanded, _ = decompress(bytes(body), 0, limit_bytes=REGISTRATION_BYTES_MAX)
        return _expanded(memoryview(expanded))
    except (ProtocolError, ValueError) as cause:  # ValueError: an invalid number or text
        raise BadRequest("Registration", "body", f"is invalid: {cause}") from cause


def write_registration(registration: BrokerRegistration, *, is_compressed: bool) -> bytes:
    """Encode a registration."""
    if not is_compressed:
        return write(registration)
    topics = registration.topics
    parts = [_sized(write(topics.data_version)), _INT.pack(len(topics.topic_config_table))]
    for config in topics.topic_config_table.values():
        line = (
            f"{config.topic_name} {config.read_queue_nums} {config.write_queue_nums} {config.perm} "
            f"{config.topic_filter_type}"
        ).encode()
        parts.append(_sized(line + b" " + write(config.attributes) if config.attributes else line))
    parts += (_sized(write(registration.filter_server_list)), _INT.pack(0))
    return zlib.compress(b"".join(parts))


def _expanded(rest: memoryview) -> BrokerRegistration:
    version, rest = _cut(rest)
    count, rest = _number(rest)
    table = {}
    for _ in range(count):  # each has at least 4 bytes, so a wrong count ends with the text
        line, rest = _cut(rest)
        config = _topic(str(line, "utf-8"))
        table[config.topic_name] = config
    servers, _ = _cut(rest)
    topics = TopicTable(topic_config_table=table, data_version=read_request(DataVersion, version))
    filter_servers = read_request(list[str], servers) if len(servers) else []
    return BrokerRegistration(topics=topics, filter_server_list=filter_servers)


def _topic(line: str) -> TopicConfig:
    name, reads, writes, perm, *rest = line.split(" ", 5)
    return TopicConfig(
        topic_name=name,
        read_queue_nums=int(reads),
        write_queue_nums=int(writes),
        perm=int(perm),
        topic_filter_type=rest[0] if rest else "SINGLE_TAG",
        attributes=read_request(dict[str, str], rest[1].encode()) if len(rest) > 1 and rest[1].strip() else {},
    )


def _sized(part: bytes) -> bytes:
    return _INT.pack(len(part)) + part


def _number(rest: memoryview) -> tuple[int, memoryview]:
    if len(rest) < _INT.size:
        raise ProtocolError("the registration is truncated")
    return _INT.unpack_from(rest)[0], rest[_INT.size :]


def _cut(rest: memoryview) -> tuple[memoryview, memoryview]:
    size, rest = _number(rest)
    if not 0 <= size <= len(rest):
        raise ProtocolError(f"a part declares {size} bytes and has {len(rest)}")
    return rest[:size], rest[size:]
