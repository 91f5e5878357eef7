"""Archive, then retention, then restore: every byte is restored, once and in order."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.support.spark_jobs import TINY_LOG, StoredFields, append, create_topic, log_store_of, read_stored, trim
from typer.testing import CliRunner

from sparrow.cli.main import app
from sparrow.model.errors import Refused, UnknownTopic
from sparrow.model.message import Draft, Host
from sparrow.model.queue import Queue
from sparrow.spark.jobs import archive
from sparrow.spark.jobs.archive import ArchiveJob
from sparrow.spark.jobs.copy import restore
from sparrow.spark.jobs.copy.restore import RestoreJob
from sparrow.spark.jobs.copy.selection import MessageSelection
from sparrow.spark.runtime.progress import JobProgress
from sparrow.spark.runtime.spark_errors import JobFailed
from sparrow.testing.platform import RunningPlatform, run_platform
from sparrow.wire.compression import Compression, compress
from sparrow.wire.record import pack_host

pytestmark = pytest.mark.xdist_group("spark")

QUEUES, ROWS = 3, 200


@pytest.fixture
def platform() -> Iterator[RunningPlatform]:
    """A platform whose segments expire at once when they are archived."""
    with run_platform(log=TINY_LOG | {"retention_group": archive.ARCHIVE_GROUP}) as started:
        create_topic(started, "orders", QUEUES)
        for number in range(ROWS):
            for queue_id in range(QUEUES):
                append(started, "orders", queue_id, [odd_message(queue_id, number)])
        yield started


def odd_message(queue_id: int, number: int) -> Draft:
    """Return one message; messages with successive numbers cover every field of a record."""
    body = (b"%d/%d " % (queue_id, number)) * (40 + number % 50)
    packed, sys_flag = compress(body, Compression.ZLIB) if number % 7 == 0 else (body, 0)
    properties = [
        f"KEYS\x01key-{number} other-{number}\x02TAGS\x01t{number % 3}\x02UNIQ_KEY\x01id-{queue_id}-{number}\x02",
        f"UNIQ_KEY\x01id-{queue_id}-{number}\x02TRAN_MSG\x01true\x02DELAY\x013\x02REAL_TOPIC\x01orders\x02",
        f"名前\x01значение\x02UNIQ_KEY\x01id-{queue_id}-{number}",  # no terminator after the last one
        "",
    ][number % 4]
    return Draft(
        body=b"" if number % 11 == 5 else packed,
        properties=properties.encode(),
        flag=number * 1000 - 7,
        sys_flag=0 if number % 11 == 5 else sys_flag,
        born_ms=1_700_000_000_000 + number,
        born_host=pack_host(Host(bytes([10, 0, queue_id, number % 256]), 40_000 + number)),
        reconsume_times=number % 5,
    )


def quiet(_: JobProgress) -> None:
    pass


@pytest.mark.thorough
def test_a_killed_archive_job_continues_without_duplicates_and_retention_keeps_the_unarchived(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    work = ArchiveJob(
        name_servers=platform.name_servers, path=f"{tmp_path}/archive", topics=("orders",), batch_rows_max=400
    )
    assert trim(platform) == 0, "nothing is archived yet, so nothing may be deleted"

    class Killed(Exception):
        pass

    def kill(done: JobProgress) -> None:
        assert done.rows < QUEUES * ROWS
        raise Killed

    with pytest.raises(Killed):
        archive.run(spark, work, on_progress=kill)
    forget_last_commit(tmp_path / "archive/_checkpoint")
    trim(platform)  # the next run would miss messages deleted too early

    said = ["pipeline", "archive", work.path, "--topic", "orders", "--rows", "400", "-n", platform.name_servers]
    ran = CliRunner().invoke(app, said)
    assert ran.exit_code == 0, ran.output
    assert f"messages archived to {work.path}." in ran.output
    rows = archive.read_archive(spark, work.path).select("queue_id", "queue_offset").collect()
    assert len(rows) == len(set(rows)) == QUEUES * ROWS
    folders = {path.relative_to(tmp_path).parts[1:3] for path in (tmp_path / "archive").glob("topic=*/date=*/hour=*")}
    assert all(topic == "topic=orders" and day.startswith("date=20") for topic, day in folders)
    assert folders

    with pytest.raises(Refused, match=r"checkpoint .* is empty"):
        archive.run(spark, msgspec.structs.replace(work, checkpoint=f"{tmp_path}/new"), on_progress=quiet)


@pytest.mark.thorough
def test_messages_deleted_by_retention_are_restored_byte_for_byte_and_once(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    originals = read_stored(platform, "orders", QUEUES)
    assert sum(map(len, originals.values())) == QUEUES * ROWS
    work = ArchiveJob(name_servers=platform.name_servers, path=f"{tmp_path}/archive", topics=("orders",))
    assert archive.run(spark, work, on_progress=quiet).rows == QUEUES * ROWS

    # Messages of another topic roll the segments; then retention deletes all of the archived topic.
    create_topic(platform, "others", 1)
    append(platform, "others", 0, [Draft(body=bytes(8000)) for _ in range(20)])
    assert trim(platform) > 0
    nothing: dict[int, list[StoredFields]] = {queue_id: [] for queue_id in range(QUEUES)}
    assert read_stored(platform, "orders", QUEUES) == nothing

    back = RestoreJob(name_servers=platform.name_servers, path=work.path)
    assert restore.run(spark, back, on_progress=quiet).written == QUEUES * ROWS
    assert read_stored(platform, "orders", QUEUES) == originals
    again = restore.run(spark, back, on_progress=quiet)
    assert (again.written, again.was_done) == (0, True)
    assert read_stored(platform, "orders", QUEUES) == originals

    # Restore a part to a topic that does not exist: the job creates it with the same number of queues.
    part = MessageSelection(topics=("orders",), queue_id=2, offsets=(10, 29))
    some = msgspec.structs.replace(back, selection=part, to="part")
    counted = restore.run(spark, some, dry_run=True, on_progress=quiet)
    assert (counted.rows, counted.written) == (20, 0)
    assert restore.run(spark, some, on_progress=quiet).written == 20
    assert read_stored(platform, "part", QUEUES) == nothing | {2: originals[2][10:30]}

    with run_platform(broker={"name": "rescue"}) as other:
        elsewhere = msgspec.structs.replace(back, name_servers=other.name_servers)
        assert restore.run(spark, elsewhere, on_progress=quiet).written == QUEUES * ROWS
        assert read_stored(other, "orders", QUEUES) == originals, "brokers of another cluster have other names"


@pytest.mark.thorough
def test_an_archive_of_a_missing_topic_fails_with_one_sentence(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    work = ArchiveJob(name_servers=platform.name_servers, path=f"{tmp_path}/archive", topics=("nowhere",))
    with pytest.raises(JobFailed) as failed:
        archive.run(spark, work, on_progress=quiet)
    assert str(failed.value) == str(UnknownTopic("nowhere"))


def forget_last_commit(checkpoint: Path) -> None:
    """Make Spark repeat the last batch, as if it had died after writing the files and before recording the commit."""
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    planned = [path for path in (checkpoint / "offsets").glob("[0-9]*") if int(path.name) > last]
    for path in [checkpoint / "commits" / str(last), *planned]:
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def test_the_messages_of_this_module_are_really_compressed() -> None:
    draft = odd_message(0, 7)
    assert draft.sys_flag
    assert zlib.decompress(draft.body).startswith(b"0/7 ")


def test_the_broker_keeps_segments_until_the_retention_group_has_consumed_them() -> None:
    with run_platform(log=TINY_LOG | {"retention_group": "keeper"}) as platform:
        create_topic(platform, "late", 1)
        append(platform, "late", 0, [Draft(body=bytes(8000)) for _ in range(30)])
        assert trim(platform) == 0, "the group has committed nothing, so nothing may be deleted"
        place = platform._loop.run(_commit(platform, 10))
        assert trim(platform) > 0
        assert log_store_of(platform).first <= place
        platform._loop.run(_commit(platform, 30))
        assert trim(platform) > 0
        assert log_store_of(platform).first > place


async def _commit(platform: RunningPlatform, offset: int) -> int:
    """Commit an offset for the group; return the physical offset up to which it has consumed the log."""
    store = log_store_of(platform)
    await store.offsets.commit("keeper", Queue("late", 0), offset)
    place = store.consumed_to("keeper")
    assert place is not None
    return place
