"""A batch appended as it was sent gives the records of its messages appended one by one, or the same refusal."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.test_column_batch import damaged_batches, packed_hosts, sound_batches

from sparrow.model.errors import SparrowError
from sparrow.model.message import Draft, StoredMessage
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore
from sparrow.store.spi import AppendResult, BatchFields, Slice
from sparrow.wire import batch, record
from sparrow.wire.hashes import tags_code_in

AS_SENT, ONE_BY_ONE = Queue("t", 0), Queue("t", 1)
STAMP = b"CLUSTER\x01DefaultCluster\x02"


@pytest.fixture(scope="module")
def store() -> Iterator[LogStore]:
    with tempfile.TemporaryDirectory() as folder, LogStore(Path(folder) / "store", now_ms=lambda: 1_000) as store:
        asyncio.run(store.catalog.put_topic(Topic(name="t")))
        yield store


def drafts_of(data: bytes, common: BatchFields) -> list[Draft]:
    return [
        Draft(
            body=body,
            properties=(own + b"\x02" if own and not own.endswith(b"\x02") else own) + common.extra_properties,
            flag=flag,
            sys_flag=common.sys_flag,
            born_ms=common.born_ms,
            born_host=common.born_host,
            reconsume_times=common.reconsume_times,
        )
        for flag, body, own in batch.decode(data)
    ]


def stored(store: LogStore, appended: AppendResult) -> tuple[list[StoredMessage], Slice]:
    found = store.read_nowait(appended.queue, int(appended.offset), count_max=10_000, bytes_max=1 << 30)
    assert isinstance(found, Slice)
    messages = record.decode_all(found.tobytes(), expand=False)
    assert [message.physical_offset for message in messages] == list(appended.physical_offsets)
    return messages, found


def comparable(message: StoredMessage, first: StoredMessage) -> tuple[object, ...]:
    return (
        message.body,
        message.properties,
        message.flag,
        message.sys_flag,
        message.born_ms,
        message.born_host,
        message.store_host,
        message.store_ms,
        message.reconsume_times,
        message.queue_offset - first.queue_offset,
        message.physical_offset - first.physical_offset,
    )


def result_of(append: Callable[[], AppendResult]) -> AppendResult | tuple[type, str]:
    try:
        return append()
    except SparrowError as error:
        return type(error), str(error)


@given(
    sound_batches | damaged_batches() | st.binary(max_size=60),
    packed_hosts,
    st.integers(0, 3),
    st.integers(0, 2**40),
    st.sampled_from([0, 7]),
)
def test_a_batch_gives_the_records_of_its_messages(
    store: LogStore, data: bytes, born_host: bytes, sys_flag: int, born_ms: int, retries: int
) -> None:
    common = BatchFields(sys_flag, born_ms, born_host, retries, STAMP)
    expected = result_of(lambda: store.append_nowait(ONE_BY_ONE, drafts_of(data, common)))
    appended = result_of(lambda: store.append_batch_nowait(AS_SENT, data, common))
    if not isinstance(expected, AppendResult) or not isinstance(appended, AppendResult):
        # of two faults in one batch, either may be named
        assert not isinstance(expected, AppendResult), "the batch was refused, its messages were not"
        assert not isinstance(appended, AppendResult), "the batch was appended, its messages were refused"
        return
    (messages, found), (wanted, wanted_slice) = stored(store, appended), stored(store, expected)
    assert [comparable(each, messages[0]) for each in messages] == [comparable(each, wanted[0]) for each in wanted]
    assert list(found.sizes) == list(wanted_slice.sizes)


def test_messages_of_a_batch_are_found_by_their_tags(store: LogStore) -> None:
    data = batch.encode([(0, b"a", b"TAGS\x01A\x02"), (0, b"b", b"TAGS\x01B\x02"), (0, b"c", b"TAGS\x01A")])
    appended = store.append_batch_nowait(AS_SENT, data, BatchFields(0, 0, bytes(8), 0, STAMP))
    code = tags_code_in(b"TAGS\x01A\x02")
    found = store.read_nowait(AS_SENT, int(appended.offset), tags_codes=frozenset({code}))
    assert isinstance(found, Slice)
    assert [message.body for message in record.decode_all(found.tobytes())] == [b"a", b"c"]
