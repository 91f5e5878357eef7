"""The KV configuration, in memory and in its file."""

import asyncio

import msgspec
import pytest

from sparrow.model.errors import StorageError, TooLarge
from sparrow.nameserver.kv import KV_BYTES_MAX, KvConfig


async def test_a_value_is_readable_until_it_is_deleted():
    kv = KvConfig()
    await kv.put("ns", "k", "v")
    await kv.put("ns", "other", "w")
    assert kv.get("ns", "k") == "v"
    assert kv.table("ns") == {"k": "v", "other": "w"}
    await kv.delete("ns", "k")
    assert kv.get("ns", "k") is None
    await kv.delete("ns", "other")
    assert kv.table("ns") is None


async def test_deleting_a_missing_key_is_no_error():
    kv = KvConfig()
    await kv.delete("ns", "k")
    await kv.put("ns", "k", "v")
    await kv.delete("ns", "other")
    assert kv.table("ns") == {"k": "v"}


async def test_a_new_instance_loads_the_file(tmp_path):
    path = tmp_path / "kv.json"
    kv = KvConfig(path)
    await asyncio.gather(*(kv.put("ns", f"k{n}", "ä") for n in range(20)))
    await kv.delete("ns", "k3")
    assert KvConfig(path).table("ns") == {f"k{n}": "ä" for n in range(20) if n != 3}
    assert [file.name for file in tmp_path.iterdir()] == ["kv.json"]


async def test_a_damaged_file_is_an_error_and_is_not_overwritten(tmp_path):
    path = tmp_path / "kv.json"
    path.write_bytes(b'{"ns":')
    with pytest.raises(StorageError, match="repair the file"):
        KvConfig(path)
    assert path.read_bytes() == b'{"ns":'


async def test_a_change_that_cannot_be_written_has_no_effect(tmp_path):
    kv = KvConfig(tmp_path / "folder" / "kv.json")
    (tmp_path / "folder").touch()  # a file in the place of the folder
    with pytest.raises(StorageError, match="cannot write"):
        await kv.put("ns", "k", "v")
    assert kv.get("ns", "k") is None


async def test_the_size_of_the_tables_is_limited():
    kv = KvConfig()
    await kv.put("ns", "k", "v")
    with pytest.raises(TooLarge):
        await kv.put("ns", "big", "x" * KV_BYTES_MAX)
    assert kv.table("ns") == {"k": "v"}


async def test_the_file_is_plain_json(tmp_path):
    path = tmp_path / "kv.json"
    await KvConfig(path).put("ORDER_TOPIC_CONFIG", "T", "a:4")
    assert msgspec.json.decode(path.read_bytes()) == {"ORDER_TOPIC_CONFIG": {"T": "a:4"}}
