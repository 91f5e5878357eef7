"""Decoders accept any bytes or raise a protocol error; both codecs agree; stream splits do not change the commands."""

import string
import struct
import zlib
from typing import Annotated, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sparrow.model.errors import BadRequest, ProtocolError, Refused
from sparrow.model.message import Host, StoredMessage
from sparrow.wire import batch, bodies, frame, headers, message_ids, properties, record
from sparrow.wire.bodies import fastjson
from sparrow.wire.codes import Language
from sparrow.wire.compression import COMPRESSED_FLAG, Compression, compress, decompress
from sparrow.wire.connection import Connection
from sparrow.wire.frame import RemotingCommand, Serialization
from sparrow.wire.headers.codec import JavaBool

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
some_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
natural64 = st.integers(0, 2**63 - 1)


# -- any bytes -----------------------------------------------------------------------------------


def value_or(decode, *errors):
    try:
        return decode()
    except errors:
        return None


def framed(header, body, serialization):
    return struct.pack(">II", 4 + len(header) + len(body), serialization << 24 | len(header)) + header + body


@st.composite
def mutated(draw, whole):
    """A valid value with some bytes changed, removed or inserted: it gets further into a decoder than random bytes."""
    damaged = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 4))):
        if not damaged:
            break
        at = draw(st.integers(0, len(damaged) - 1))
        how = draw(st.sampled_from(["set", "cut", "put"]))
        if how == "set":
            damaged[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del damaged[at : at + draw(st.integers(1, 8))]
        else:
            damaged[at:at] = draw(st.binary(max_size=8))
    return bytes(damaged)


def read_typed(command):
    value_or(command.fields, BadRequest)
    for code in {command.code, 310, 11, 14, 103}:
        for kind in (headers.request_header_type(code), headers.response_header_type(code)):
            header = value_or(lambda kind=kind: headers.read(kind, command.ext), BadRequest)
            if header is not None:
                assert headers.read(kind, headers.write(header)) == header


@given(st.binary(max_size=200), st.binary(max_size=20), st.integers(0, 2))
def test_any_header_decodes_to_a_command_or_raises_a_protocol_error(header, body, serialization):
    command = value_or(lambda: frame.decode(framed(header, body, serialization)), ProtocolError)
    if command is not None:
        read_typed(command)


@st.composite
def commands(draw):
    ext = draw(st.none() | st.dictionaries(some_text, some_text, min_size=1, max_size=5))
    return RemotingCommand(
        code=draw(st.integers(0, 3000)),
        opaque=draw(int32),
        flag=draw(st.integers(0, 3)),
        language=draw(st.sampled_from(list(Language))),
        version=draw(st.integers(0, 0x7FFF)),
        remark=draw(st.none() | some_text),
        ext=ext,
        body=draw(st.binary(max_size=100)),
        serialization=draw(st.sampled_from(Serialization)),
    )


@given(mutated(commands().map(frame.encode)))
def test_a_damaged_frame_decodes_to_a_command_or_raises_a_protocol_error(damaged):
    command = value_or(lambda: frame.decode(damaged), ProtocolError)
    if command is not None:
        read_typed(command)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted({**headers.REQUEST_HEADERS, **headers.RESPONSE_HEADERS})), st.data())
def test_any_json_as_ext_fields_gives_a_header_or_a_bad_request(code, data):
    kind = headers.REQUEST_HEADERS.get(code) or headers.RESPONSE_HEADERS[code]
    names = st.sampled_from(kind.__struct_encode_fields__) if kind.__struct_encode_fields__ else st.nothing()
    ext = data.draw(JSON_VALUES | st.dictionaries(names | text, JSON_VALUES, max_size=10))
    command = frame.decode(framed(msgspec.json.encode({"code": code, "extFields": ext}), b"", 0))
    value_or(lambda: headers.read(kind, command.ext), BadRequest)


def test_a_damaged_raw_header_raises_at_most_a_bad_request():
    for nonsense in (b'{"topic":"\xff"}', b'{"topic":"\xed\xa0\x80"}', b'{"\xff":"x"}', b"[[[]]]", b'{"offset":1e999}'):
        command = frame.decode(framed(b'{"code":11,"extFields":%b}' % nonsense, b"", 0))
        for kind in {*headers.REQUEST_HEADERS.values(), *headers.RESPONSE_HEADERS.values()}:
            value_or(lambda kind=kind, command=command: headers.read(kind, command.ext), BadRequest)


@given(st.lists(mutated(commands().map(frame.encode)) | st.binary(max_size=30), max_size=4))
def test_any_stream_gives_commands_or_stays_broken_after_its_first_error(pieces):
    connection = Connection(frame_bytes_max=10_000)
    for piece in pieces:
        was_broken = connection.error is not None
        commands = connection.feed(piece)
        assert connection.held_bytes < 10_000
        if was_broken:
            assert commands == []
            assert connection.error is not None


hosts = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), int32)
names = st.text(string.ascii_letters + string.digits + "%_-|", min_size=1, max_size=20)
plain_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=20)
stored = st.builds(
    StoredMessage,
    topic=names,
    body=st.binary(max_size=200),
    properties=st.dictionaries(plain_text, plain_text, max_size=4),
    flag=int32,
    queue_id=int32,
    queue_offset=int64,
    physical_offset=int64,
    sys_flag=st.sampled_from([0, 0x4, 0x8, 0xC]),
    born_ms=int64,
    born_host=hosts,
    store_ms=int64,
    store_host=hosts,
    reconsume_times=int32,
    prepared_offset=int64,
)


@given(st.binary(max_size=200) | mutated(stored.map(record.encode_message)), st.booleans(), st.booleans())
def test_any_record_gives_a_message_or_a_protocol_error(damaged, verify_crc, expand):
    value_or(lambda: record.decode(damaged, verify_crc=verify_crc, expand=expand), ProtocolError)
    value_or(lambda: record.decode_all(memoryview(damaged), verify_crc=verify_crc, expand=expand), ProtocolError)


def one_by_one(data: bytes, verify_crc: bool) -> list[StoredMessage]:
    found, at = [], 0
    while at < len(data):
        found.append(record.decode(data, at, verify_crc=verify_crc))
        at += int.from_bytes(data[at : at + 4], "big")
    return found


@given(st.lists(mutated(stored.map(record.encode_message)) | stored.map(record.encode_message)), st.booleans())
def test_decoding_all_records_at_once_equals_decoding_them_one_by_one(records, verify_crc):
    data = b"".join(records)
    slow = value_or(lambda: one_by_one(data, verify_crc), ProtocolError)
    quick = value_or(lambda: record.decode_all(data, verify_crc=verify_crc), ProtocolError)
    assert quick == slow


@given(stored)
def test_a_record_can_be_turned_into_a_draft_again(message):
    raw = record.encode_message(message)
    draft = record.draft_from_record(raw)
    assert draft.body == message.body
    assert draft.properties == record.properties_of(raw)
    assert properties.decode(draft.properties) == message.properties
    assert record.unpack_host(draft.born_host) == message.born_host
    assert (draft.flag, draft.born_ms, draft.reconsume_times) == (
        message.flag,
        message.born_ms,
        message.reconsume_times,
    )


@given(st.binary(max_size=100), st.sampled_from(["TAGS", "a", "KEYS"]))
def test_any_property_string_gives_a_mapping_or_a_protocol_error(encoded, name):
    found = value_or(lambda: properties.decode(encoded), ProtocolError)
    one = value_or(lambda: properties.property_value(encoded, name), ProtocolError)
    if found is not None:
        assert one == found.get(name)


members = st.lists(st.tuples(int32, st.binary(max_size=30), st.binary(max_size=30)), max_size=4)


@given(st.binary(max_size=100) | mutated(members.map(batch.encode)))
def test_any_batch_gives_members_or_a_protocol_error(damaged):
    found = value_or(lambda: batch.decode(damaged), ProtocolError)
    if found is not None:
        assert sum(len(member.body) + len(member.properties) + 22 for member in found) == len(damaged)


DIALECT = st.text('{}[]:,"\\0123456789.-eE+truefalsn $标', max_size=60).map(str.encode)


@given(st.binary(max_size=100) | DIALECT | mutated(JSON_VALUES.map(fastjson.emit)))
def test_any_fastjson_text_gives_a_value_or_a_protocol_error(damaged):
    value_or(lambda: fastjson.parse(damaged), ProtocolError)


BODIES = [kind for kind in vars(bodies).values() if isinstance(kind, type) and issubclass(kind, bodies.Body)]


@given(st.sampled_from(BODIES), st.binary(max_size=50) | DIALECT | JSON_VALUES.map(fastjson.emit))
def test_any_body_gives_a_value_or_a_bad_request(kind, body):
    value_or(lambda: bodies.read(kind, body), BadRequest)


@given(st.binary(max_size=60).map(zlib.compress) | st.binary(max_size=60))
def test_any_registration_gives_a_value_or_a_bad_request(body):
    for is_compressed in (False, True):
        value_or(lambda flag=is_compressed: bodies.read_registration(body, is_compressed=flag), BadRequest)


@given(
    text
    | st.binary(min_size=16, max_size=16).map(bytes.hex)
    | st.text("0123456789abcdefABCDEF ", min_size=32, max_size=32)
)
def test_any_id_gives_its_parts_or_a_protocol_error(written):
    place = value_or(lambda: message_ids.parse_offset_id(written), ProtocolError)
    if place is not None:
        assert message_ids.format_offset_id(*place) == written.upper()
    parts = value_or(lambda: message_ids.parse_unique_id(written), ProtocolError)
    if parts is not None:
        assert message_ids.format_unique_id(parts) == written.upper()


@given(
    st.binary(max_size=100) | mutated(st.sampled_from([compress(b"abc" * 500, kind)[0] for kind in Compression])),
    st.sampled_from([0, 0x100, 0x200, 0x300, 0x400, 0x700]),
    st.integers(1, 2000),
)
def test_any_compressed_body_gives_at_most_the_limit_or_a_protocol_error(body, kind, limit_bytes):
    found = value_or(lambda: decompress(body, COMPRESSED_FLAG | kind, limit_bytes=limit_bytes), ProtocolError)
    if found is not None:
        assert len(found[0]) <= limit_bytes


# -- round trips ---------------------------------------------------------------------------------


def told(command):
    """The contents of a command, without its serialization."""
    return (
        command.code,
        command.opaque,
        command.flag,
        command.language,
        command.version,
        command.remark,
        dict(command.fields()),
        bytes(command.body),
    )


@given(commands())
def test_both_header_codecs_round_trip_and_agree(command):
    for serialization in Serialization:
        again = frame.decode(frame.encode(msgspec.structs.replace(command, serialization=serialization)))
        assert told(again) == told(command)
        assert again.serialization is serialization


@given(st.lists(commands(), min_size=1, max_size=5), st.data())
def test_any_split_of_a_stream_gives_the_same_commands(sent, data):
    stream = b"".join(map(frame.encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    connection, received = Connection(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += connection.feed(stream[start:end])
    assert [told(command) for command in received] == [told(command) for command in sent]
    assert connection.held_bytes == 0


def values_of(kind):
    """A strategy for a header field's type."""
    if kind is JavaBool:
        return st.booleans()
    if get_origin(kind) is Annotated:
        bound = get_args(kind)[1].le
        return st.integers(-bound - 1, bound)
    if kind is str:
        return some_text
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    return st.one_of(*(st.none() if part is type(None) else values_of(part) for part in get_args(kind)))


@pytest.mark.parametrize(
    "kind", sorted({*headers.REQUEST_HEADERS.values(), *headers.RESPONSE_HEADERS.values()}, key=str)
)
@given(st.data())
def test_headers_round_trip_through_both_codecs(kind, data):
    header = kind(**{field.name: data.draw(values_of(field.type)) for field in msgspec.structs.fields(kind)})
    for serialization in Serialization:
        command = RemotingCommand(0, ext=headers.write(header), serialization=serialization)
        assert headers.read(kind, frame.decode(frame.encode(command)).ext) == header


@given(stored)
def test_records_round_trip(message):
    encoded = record.encode_message(message)
    again = record.decode(encoded)
    ipv6_bits = (0x10 if message.born_host.is_ipv6 else 0) | (0x20 if message.store_host.is_ipv6 else 0)
    assert again.sys_flag == message.sys_flag | ipv6_bits
    assert msgspec.structs.replace(again, sys_flag=message.sys_flag) == message
    assert record.encode_message(again) == encoded


@given(stored)
def test_the_same_record_in_v2_decodes_to_the_same_message(message):
    v1 = record.encode_message(message)
    topic_at = len(v1) - len(properties.encode(message.properties)) - 2 - len(message.topic) - 1
    v2 = bytearray(v1)
    v2[topic_at : topic_at + 1] = struct.pack(">H", v1[topic_at])
    struct.pack_into(">ii", v2, 0, len(v2), record.MAGIC_V2)
    assert record.decode(v2) == record.decode(v1)


@given(st.dictionaries(plain_text, plain_text, max_size=8))
def test_properties_round_trip(mapping):
    encoded = properties.encode(mapping)
    assert properties.decode(encoded) == mapping
    for name, value in mapping.items():
        assert properties.property_value(encoded, name) == value


@given(st.dictionaries(text, text, max_size=4))
def test_properties_round_trip_or_are_refused(mapping):
    try:
        encoded = properties.encode(mapping)
    except Refused:
        return
    assert properties.decode(encoded) == {name: value for name, value in mapping.items() if name and value}


@given(members)
def test_batches_round_trip(sent):
    assert batch.decode(batch.encode(sent)) == sent


@given(st.dictionaries(st.builds(bodies.QueueRef, text, text, int32), int64, max_size=5))
def test_tables_keyed_by_queues_round_trip(table):
    offsets = bodies.OffsetTable(table)
    assert bodies.read(bodies.OffsetTable, bodies.write(offsets)) == offsets


@given(JSON_VALUES)
def test_fastjson_parses_its_own_output_and_plain_json(value):
    assert fastjson.parse(fastjson.emit(value)) == fastjson.parse(msgspec.json.encode(value)) == value


@given(hosts.filter(lambda host: 0 <= host.port <= 0xFFFF) | st.just(Host()), natural64)
def test_offset_ids_round_trip(host, physical_offset):
    assert message_ids.parse_offset_id(message_ids.format_offset_id(host, physical_offset)) == (host, physical_offset)


@given(
    st.binary(max_size=2000),
    st.sampled_from(Compression),
    st.integers(0, 0x3F).map(lambda bits: bits & ~COMPRESSED_FLAG),
)
def test_compression_round_trips(body, kind, other_bits):
    compressed, bits = compress(body, kind)
    assume(bits & COMPRESSED_FLAG)
    assert decompress(compressed, bits | other_bits) == (body, other_bits)
