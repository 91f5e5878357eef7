"""Stages as files: they grow in order, are sealed, survive restarts, are used once, and have a size limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.queue_batches import encode_queue_batches
from tests.support.wait import eventually

from sparrow.broker.produce.stage_file import StageChunk
from sparrow.broker.produce.stage_store import STAGE_NAME_CHARS_MAX, StageStore
from sparrow.model.errors import Busy, Refused, StoreFull
from sparrow.wire import queue_batches, record

HOUR_MS = 3_600_000
START_MS = 4_000_000_000_000
"""Later than the modification time of any file."""


def chunk(*bodies: bytes) -> Callable[[], StageChunk]:
    made = encode_queue_batches("T", {0: bodies})
    (part,) = queue_batches.decode(made)
    return lambda: StageChunk(made, len(bodies), len(part.data))


@asynccontextmanager
async def stages_in(folder: Path, **how: object):
    options: dict[str, object] = {"bytes_max": 1 << 20, "ttl_ms": HOUR_MS, "now_ms": lambda: START_MS}
    stages = StageStore(folder, **(options | how))
    await stages.start()
    try:
        yield stages
    finally:
        await stages.stop()


@pytest.fixture
async def stages(tmp_path):
    async with stages_in(tmp_path / "stages") as stages:
        yield stages


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "stages").iterdir())


async def bodies_in(stages: StageStore, *names: str) -> list[bytes]:
    async with stages.claim(names) as found:
        return [message.body for part in found for message in record.decode_all(bytes(part.data))]


async def test_a_sealed_stage_holds_its_chunks_in_order(stages, tmp_path):
    await stages.add("s", 0, 10, chunk(b"a", b"b"))
    await stages.add("s", 1, 10, chunk(b"c"))
    assert files(tmp_path) == ["s.part"]
    sealed = await stages.seal("s", 2)
    assert (sealed.rows, sealed.chunks, sealed.size_bytes) == (3, 2, sealed.file_bytes - 2 * (8 + 4 + 15) - 12 - 24)
    assert files(tmp_path) == ["s.stage"]
    assert stages.stored_bytes == (tmp_path / "stages" / "s.stage").stat().st_size
    assert await bodies_in(stages, "s") == [b"a", b"b", b"c"]


async def test_a_repeated_chunk_changes_nothing_even_after_the_seal(stages):
    for _ in range(3):
        await stages.add("s", 0, 10, chunk(b"a"))
    first, held = await stages.seal("s", 1), stages.stored_bytes
    await stages.add("s", 0, 10, chunk(b"a"))
    assert await stages.seal("s", 1) is first
    assert stages.stored_bytes == held
    assert await bodies_in(stages, "s") == [b"a"]


async def test_concurrent_chunks_are_stored_once_and_in_order(stages):
    again = [stages.add("s", seq, 10, chunk(b"%d" % seq)) for seq in (0, 1, 1, 2, 0, 3, 2)]
    await asyncio.gather(*again)
    await stages.seal("s", 4)
    assert await bodies_in(stages, "s") == [b"0", b"1", b"2", b"3"]


async def test_chunks_out_of_order_or_after_the_seal_are_refused(stages):
    with pytest.raises(Refused, match="does not exist"):
        await stages.add("s", 1, 10, chunk(b"x"))
    await stages.add("s", 0, 10, chunk(b"a"))
    with pytest.raises(Refused, match="expects chunk 1, not 2"):
        await stages.add("s", 2, 10, chunk(b"x"))
    with pytest.raises(Refused, match="has 1 chunks, not 2"):
        await stages.seal("s", 2)
    with pytest.raises(Refused, match="not sealed"):
        await bodies_in(stages, "s")
    await stages.seal("s", 1)
    with pytest.raises(Refused, match="is sealed"):
        await stages.add("s", 1, 10, chunk(b"x"))
    with pytest.raises(Refused, match="has 1 chunks, not 2"):
        await stages.seal("s", 2)
    assert await bodies_in(stages, "s") == [b"a"]


async def test_a_refused_chunk_leaves_the_stage_unchanged(stages):
    def refuse() -> StageChunk:
        raise Refused("no")

    with pytest.raises(Refused):
        await stages.add("s", 0, 10, refuse)
    assert ("s" in stages, stages.stored_bytes) == (False, 0)
    await stages.add("s", 0, 10, chunk(b"a"))
    with pytest.raises(Refused):
        await stages.add("s", 1, 10, refuse)
    await stages.add("s", 1, 10, chunk(b"b"))
    await stages.seal("s", 2)
    assert await bodies_in(stages, "s") == [b"a", b"b"]


async def test_an_empty_stage_can_be_sealed(stages):
    sealed = await stages.seal("s", 0)
    assert (sealed.rows, sealed.size_bytes) == (0, 0)
    assert await bodies_in(stages, "s") == []


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/b", "a.b", "a b", "ä", "a\n", "a\0", "x" * (STAGE_NAME_CHARS_MAX + 1)]
)
async def test_a_stage_name_cannot_leave_the_directory(stages, tmp_path, name):
    for attempt in (
        stages.add(name, 0, 10, chunk(b"a")),
        stages.seal(name, 0),
        stages.drop([name]),
        bodies_in(stages, name),
    ):
        with pytest.raises(Refused, match="not a stage name"):
            await attempt
    assert files(tmp_path) == []


async def test_the_longest_stage_name_is_accepted(stages):
    await stages.seal("x" * STAGE_NAME_CHARS_MAX, 0)
    assert len(stages) == 1


async def test_stages_are_appended_in_the_requested_order_and_never_twice(stages):
    for name in ("a", "b"):
        await stages.add(name, 0, 10, chunk(name.encode()))
        await stages.seal(name, 1)
    assert await bodies_in(stages, "b", "a") == [b"b", b"a"]
    with pytest.raises(Refused, match="twice"):
        await bodies_in(stages, "a", "b", "a")
    async with stages.claim(["a"]):
        with pytest.raises(Busy, match="is being committed"):
            await bodies_in(stages, "b", "a")
    assert await bodies_in(stages, "a") == [b"a"], "a failed commit must keep the stage"


async def test_a_dropped_stage_is_removed_and_its_name_can_be_used_again(stages, tmp_path):
    await stages.add("s", 0, 10, chunk(b"a"))
    await stages.add("t", 0, 10, chunk(b"b"))
    await stages.seal("t", 1)
    await stages.drop(["s", "t", "never"])
    assert (len(stages), stages.stored_bytes, files(tmp_path)) == (0, 0, [])
    with pytest.raises(Refused, match="does not exist"):
        await bodies_in(stages, "t")
    await stages.add("s", 0, 10, chunk(b"c"))
    await stages.seal("s", 1)
    assert await bodies_in(stages, "s") == [b"c"]


async def test_only_sealed_stages_survive_a_restart(tmp_path):
    async with stages_in(tmp_path / "stages", syncs=True) as stages:
        await stages.add("kept", 0, 10, chunk(b"a", b"b"))
        sealed = await stages.seal("kept", 1)
        await stages.add("growing", 0, 10, chunk(b"c"))
    async with stages_in(tmp_path / "stages") as stages:
        assert files(tmp_path) == ["kept.stage"]
        assert stages.stored_bytes == sealed.file_bytes
        again = await stages.seal("kept", 1)
        assert (again.rows, again.size_bytes) == (sealed.rows, sealed.size_bytes)
        assert await bodies_in(stages, "kept") == [b"a", b"b"]
        with pytest.raises(Refused, match="does not exist"):
            await stages.add("growing", 1, 10, chunk(b"d"))


@pytest.mark.parametrize("at", [0, 3, 5, 20, 60, -30, -24, -17, -10, -1])
async def test_a_damaged_stage_is_never_appended(tmp_path, at):
    async with stages_in(tmp_path / "stages") as stages:
        await stages.add("s", 0, 10, chunk(b"a" * 50))
        await stages.add("s", 1, 10, chunk(b"b" * 50))
        await stages.seal("s", 2)
    path = tmp_path / "stages" / "s.stage"
    data = bytearray(path.read_bytes())
    data[at] ^= 0x03
    path.write_bytes(data)
    async with stages_in(tmp_path / "stages") as stages:
        with pytest.raises(Refused, match="stage its records again"):
            await bodies_in(stages, "s")


@pytest.mark.parametrize("size", [0, 10, 24, 50])
async def test_a_truncated_stage_is_removed_at_a_start(tmp_path, size):
    async with stages_in(tmp_path / "stages") as stages:
        await stages.add("s", 0, 10, chunk(b"a" * 50))
        await stages.seal("s", 1)
    path = tmp_path / "stages" / "s.stage"
    path.write_bytes(path.read_bytes()[:size])
    async with stages_in(tmp_path / "stages") as stages:
        assert "s" not in stages
        assert files(tmp_path) == []


async def test_the_total_size_of_stages_is_limited(tmp_path):
    async with stages_in(tmp_path / "stages", bytes_max=1000) as stages:
        await stages.add("s", 0, 300, chunk(b"a" * 300))
        with pytest.raises(Busy, match="stage_bytes_max"):
            await stages.add("t", 0, 900, chunk(b"x"))
        assert "t" not in stages
        await stages.add("s", 0, 900, chunk(b"a" * 300))  # a repeated chunk needs no room
        await stages.drop(["s"])
        await stages.add("t", 0, 900, chunk(b"x"))


async def test_chunks_count_towards_the_limit_before_they_are_written(tmp_path):
    async with stages_in(tmp_path / "stages", bytes_max=1000) as stages:
        first, second = await asyncio.gather(
            stages.add("s", 0, 600, chunk(b"a")), stages.add("t", 0, 600, chunk(b"b")), return_exceptions=True
        )
        assert first is None
        assert isinstance(second, Busy)


async def test_the_memory_of_unwritten_chunks_is_limited(stages, monkeypatch):
    monkeypatch.setattr("sparrow.broker.produce.stage_store.UNWRITTEN_BYTES_MAX", 100)
    with stages.reserve_memory(90):
        with pytest.raises(Busy, match="90 bytes of other records"):
            await stages.add("s", 0, 20, chunk(b"a"))
        await stages.add("s", 0, 10, chunk(b"a"))
    with stages.reserve_memory(5000), pytest.raises(Busy):
        await stages.add("s", 1, 1, chunk(b"b"))
    await stages.add("s", 1, 5000, chunk(b"b"))


async def test_an_unused_stage_expires(tmp_path):
    now_ms = START_MS
    async with stages_in(tmp_path / "stages", now_ms=lambda: now_ms) as stages:
        await stages.seal("old", 0)
        now_ms += HOUR_MS
        await stages.add("young", 0, 10, chunk(b"a"))
        await stages.expire()
        assert len(stages) == 2
        now_ms += 1
        async with stages.claim(["old"]):
            await stages.expire()
            assert "old" in stages, "the stage is being committed"
        await stages.expire()
        assert files(tmp_path) == ["young.part"]


async def test_old_stages_expire_without_a_request_also_after_a_restart(tmp_path):
    async with stages_in(tmp_path / "stages") as stages:
        await stages.seal("s", 0)
    async with stages_in(tmp_path / "stages", ttl_ms=40.0) as stages:
        await eventually(lambda: "s" not in stages)


async def test_a_failed_write_is_reported_and_the_chunk_can_be_sent_again(stages, tmp_path):
    await stages.add("s", 0, 10, chunk(b"a"))
    path = tmp_path / "stages" / "s.part"
    kept = path.read_bytes()
    path.unlink()
    path.mkdir()  # a directory cannot be written as a file, not even by root
    with pytest.raises(StoreFull):
        await stages.add("s", 1, 10, chunk(b"b"))
    path.rmdir()
    path.write_bytes(kept + b"half of a body")
    await stages.add("s", 1, 10, chunk(b"b"))
    await stages.seal("s", 2)
    assert await bodies_in(stages, "s") == [b"a", b"b"]
