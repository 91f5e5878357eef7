"""Where the records that a pull found end in the log."""

from __future__ import annotations

from pathlib import Path

from tests.support.drafts import make_draft
from tests.support.log_stores import small_settings

from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.replication.read_advice import end_of
from sparrow.store.log import LogStore
from sparrow.store.spi import Slice

A, B = Queue("A", 0), Queue("B", 0)


async def test_the_end_is_that_of_the_last_record_wherever_the_records_lie(tmp_path: Path) -> None:
    async with LogStore(tmp_path, small_settings()) as store:
        for topic in ("A", "B", "%RETRY%g"):
            await store.catalog.put_topic(Topic(name=topic))
        ends = [store.append_nowait(queue, [make_draft("x")]).end for queue in (A, B, A, A)]
        for count, end in ((1, ends[0]), (2, ends[2]), (3, ends[3])):
            found = await store.read(A, 0, count_max=count)
            assert isinstance(found, Slice)
            assert end_of(A, found) == end
        assert end_of(A, await store.read(A, 3)) is None, "nothing was found"
        retry = Queue("%RETRY%g", 0)
        store.append_nowait(retry, [make_draft("x")])
        assert end_of(retry, await store.read(retry, 0)) is None, "it may stand for a record elsewhere"
