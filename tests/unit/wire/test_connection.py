"""Streams split at any byte, broken streams, and incomplete streams."""

import struct
import tracemalloc

import pytest
from tests.support.cases import each_case

import sparrow.wire.connection
from sparrow.model.errors import ProtocolError
from sparrow.wire.connection import SMALL_PIECE_BYTES, Connection
from sparrow.wire.frame import RemotingCommand, Serialization, decode, encode

COMMANDS = [
    RemotingCommand(310, 1, ext={"b": "T"}, body=b"one"),
    RemotingCommand(11, 2, ext={"topic": "T"}, serialization=Serialization.BINARY),
    RemotingCommand(34, 3, body=bytes(range(256)) * 64),
]
STREAM = b"".join(map(encode, COMMANDS))
EXPECTED = [(command.code, command.opaque, command.fields(), bytes(command.body)) for command in COMMANDS]


def seen(commands):
    return [(command.code, command.opaque, dict(command.fields()), bytes(command.body)) for command in commands]


def test_several_frames_in_one_read_are_decoded():
    assert seen(Connection().feed(STREAM)) == EXPECTED


@each_case("step", [1, 2, 3, 7, 8, 9, 100, SMALL_PIECE_BYTES - 1, SMALL_PIECE_BYTES, SMALL_PIECE_BYTES + 1, 9000])
def test_reads_of_any_size_give_the_same_commands(step):
    connection, commands = Connection(), []
    for at in range(0, len(STREAM), step):
        commands += connection.feed(STREAM[at : at + step])
    assert seen(commands) == EXPECTED
    assert connection.held_bytes == 0


def test_a_split_at_any_byte_gives_the_same_commands():
    short = b"".join(map(encode, COMMANDS[:2]))
    for cut in range(len(short) + 1):
        connection = Connection()
        assert seen(connection.feed(short[:cut]) + connection.feed(short[cut:])) == EXPECTED[:2], cut


def test_the_smallest_frame_split_after_its_start_is_completed_at_once():
    connection = Connection()
    frame = encode(RemotingCommand(1))
    assert connection.feed(frame[:8]) == []
    assert connection.held_bytes == 8
    assert seen(connection.feed(frame[8:])) == [(1, 0, {}, b"")]


def test_empty_input_gives_no_commands():
    assert Connection().feed(b"") == []


def test_a_frame_that_is_too_large_is_refused_on_its_first_eight_bytes():
    connection = Connection(frame_bytes_max=1000)
    assert connection.feed(struct.pack(">I", 997)) == []
    assert connection.feed(struct.pack(">I", 0)) == []
    assert "limit is 1000" in str(connection.error)


def test_a_broken_stream_stays_broken():
    connection = Connection()
    assert connection.feed(b"GET / HTTP/1.1\r\n\r\n") == []
    assert isinstance(connection.error, ProtocolError)
    assert connection.feed(STREAM) == []
    assert connection.held_bytes == 0


@pytest.mark.parametrize("step", [1, 8, 100, 1 << 20])
def test_commands_before_invalid_data_are_returned_for_any_split(step):
    connection, commands = Connection(), []
    stream = STREAM + b"\xff" * 64
    for at in range(0, len(stream), step):
        commands += connection.feed(stream[at : at + step])
    assert seen(commands) == EXPECTED
    assert connection.error is not None


def test_a_body_is_a_bytes_object():
    (command,) = Connection().feed(encode(COMMANDS[2]))
    assert type(command.body) is bytes


def test_a_stream_byte_by_byte_costs_little_more_than_its_bytes():
    frame = encode(RemotingCommand(1, body=bytes(200_000)))
    connection = Connection()
    connection.feed(frame[:20])
    tracemalloc.start()
    for at in range(20, len(frame) - 1):
        connection.feed(frame[at : at + 1])
    snapshot = tracemalloc.take_snapshot()
    tracemalloc.stop()
    # Only what this module holds: threads that earlier tests left behind allocate meanwhile.
    held = snapshot.filter_traces([tracemalloc.Filter(True, sparrow.wire.connection.__file__)])
    assert len(frame) <= sum(trace.size for trace in held.traces) < 2 * len(frame)
    assert connection.held_bytes == len(frame) - 1
    assert connection.feed(frame[-1:])[0].body == decode(frame).body
