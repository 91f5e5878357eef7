"""Compressed bodies: three algorithms, and decompression bombs."""

import sys
import tracemalloc
import zlib

import pytest

from sparrow.model.errors import MissingExtra, ProtocolError
from sparrow.wire.compression import COMPRESSED_FLAG, COMPRESSION_TYPE_MASK, Compression, compress, decompress

BODY = b"hello sparrow " * 500


@pytest.mark.parametrize("kind", Compression)
def test_a_body_round_trips_and_its_flags_are_removed(kind):
    compressed, bits = compress(BODY, kind)
    assert bits & COMPRESSED_FLAG
    assert len(compressed) < len(BODY)
    assert decompress(compressed, bits | 0x8) == (BODY, 0x8)


def test_zlib_is_written_without_type_bits_and_read_with_either_form():
    compressed, bits = compress(BODY)
    assert bits & COMPRESSION_TYPE_MASK == 0
    assert decompress(compressed, COMPRESSED_FLAG | 0x300)[0] == BODY


@pytest.mark.parametrize("kind", Compression)
def test_an_empty_body_round_trips(kind):
    compressed, bits = compress(b"", kind)
    assert decompress(compressed, bits) == (b"", 0)


@pytest.mark.parametrize("kind", Compression)
def test_a_decompression_bomb_is_refused_before_it_expands(kind):
    bomb, bits = compress(bytes(64 * 1024 * 1024), kind)
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="larger than 1000000 bytes"):
        decompress(bomb, bits, limit_bytes=1_000_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16_000_000


@pytest.mark.parametrize("kind", Compression)
def test_a_body_of_exactly_the_limit_is_accepted(kind):
    compressed, bits = compress(BODY, kind)
    assert decompress(compressed, bits, limit_bytes=len(BODY))[0] == BODY
    with pytest.raises(ProtocolError):
        decompress(compressed, bits, limit_bytes=len(BODY) - 1)


@pytest.mark.parametrize("kind", Compression)
@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_truncated_body_is_a_protocol_error(kind, cut):
    compressed, bits = compress(BODY, kind)
    with pytest.raises(ProtocolError):
        decompress(compressed[:-cut], bits)


@pytest.mark.parametrize("kind", Compression)
@pytest.mark.parametrize("body", [b"", b"nonsense", b"\x28\xb5\x2f\xfd"])
def test_invalid_data_is_a_protocol_error(kind, body):
    with pytest.raises(ProtocolError):
        decompress(body, COMPRESSED_FLAG | kind)


def test_an_unknown_algorithm_is_a_protocol_error():
    with pytest.raises(ProtocolError, match="type 4"):
        decompress(zlib.compress(BODY), COMPRESSED_FLAG | 0x400)


@pytest.mark.parametrize(("kind", "package", "name"), [("LZ4", "lz4", "LZ4"), ("ZSTD", "zstandard", "Zstandard")])
def test_a_missing_package_is_named_with_its_extra(kind, package, name, monkeypatch):
    packed, sys_flag = compress(b"x" * 1000, Compression[kind])
    monkeypatch.setitem(sys.modules, package, None)
    said = rf'a body compressed with {name} needs {package}: pip install "sparrowmq\[compression\]"'
    with pytest.raises(MissingExtra, match=said):
        decompress(packed, sys_flag)
    with pytest.raises(MissingExtra, match=said):
        compress(b"x" * 1000, Compression[kind])
