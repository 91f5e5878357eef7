"""Replay: write a part of a topic to another topic, or deliver it to one group, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.support.spark_jobs import append, create_topic, read_stored
from tests.support.wait import wait_until
from typer.testing import CliRunner

from sparrow.cli.main import app
from sparrow.client import Consumer
from sparrow.model.errors import Refused, UnknownGroup
from sparrow.model.message import Draft
from sparrow.spark.jobs import archive
from sparrow.spark.jobs.archive import ArchiveJob
from sparrow.spark.jobs.copy import replay
from sparrow.spark.jobs.copy.replay import ReplayJob
from sparrow.spark.jobs.copy.selection import MessageSelection
from sparrow.testing.platform import RunningPlatform, run_platform
from sparrow.wire import properties

pytestmark = pytest.mark.xdist_group("spark")

QUEUES, ROWS = 2, 50


@pytest.fixture(scope="module")
def platform() -> Iterator[RunningPlatform]:
    with run_platform() as started:
        create_topic(started, "orders", QUEUES)
        for queue_id in range(QUEUES):
            append(started, "orders", queue_id, [order(queue_id, number) for number in range(ROWS)])
        yield started


def order(queue_id: int, number: int) -> Draft:
    said = {"KEYS": f"order-{number} q{queue_id}", "UNIQ_KEY": f"ID{queue_id}-{number}", "city": "Oslo"}
    return Draft(body=b"%d/%d" % (queue_id, number), properties=properties.encode(said), flag=7, born_ms=1_000 + number)


def quiet(_: object) -> None:
    pass


@pytest.mark.thorough
def test_selected_keys_are_replayed_with_their_ids_and_origin(spark: SparkSession, platform: RunningPlatform) -> None:
    wanted = MessageSelection(topics=("orders",), keys=("order-3", "order-40", "ID1-7", "absent"))
    work = ReplayJob(name_servers=platform.name_servers, selection=wanted, to="again", replay_id="tuesday")
    dry = ["pipeline", "replay", "orders", "--to", "again", "--keys", ",".join(wanted.keys), "--dry-run"]
    ran = CliRunner().invoke(app, [*dry, "-n", platform.name_servers])
    assert ran.exit_code == 0, ran.output
    assert "orders/sparrow/1: 3 messages, offsets 3 to 40" in ran.output
    assert "5 messages would be replayed to again." in ran.output
    assert replay.run(spark, work, on_progress=quiet).written == 5
    found = read_stored(platform, "again", QUEUES)
    originals = read_stored(platform, "orders", QUEUES)
    assert [each.body for each in found[0]] == [b"0/3", b"0/40"]
    assert [each.body for each in found[1]] == [b"1/3", b"1/7", b"1/40"]
    copy, original = found[1][1], originals[1][7]
    added = {"REPLAY_ID": "tuesday", "REPLAY_OF": "orders/sparrow/1/7"}
    assert properties.decode(copy.properties) == properties.decode(original.properties) | added
    assert (copy.flag, copy.born_ms) == (7, 1_007)
    again = replay.run(spark, work, on_progress=quiet)
    assert (again.was_done, again.written) == (True, 0)
    assert read_stored(platform, "again", QUEUES) == found


@pytest.mark.thorough
def test_a_group_gets_messages_that_only_the_archive_holds_under_its_own_topic(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    kept = ArchiveJob(name_servers=platform.name_servers, path=f"{tmp_path}/archive", topics=("orders",))
    archive.run(spark, kept, on_progress=quiet)
    got: list[tuple[str, bytes, str | None]] = []
    with Consumer(platform.name_servers, group="billing", consume_from="last") as consumer:
        consumer.subscribe("orders")
        consumer.start(lambda message: got.append((message.topic, message.body, message.unique_key)))
        part = MessageSelection(topics=("orders",), queue_id=0, offsets=(10, 12))
        work = ReplayJob(name_servers=platform.name_servers, selection=part, archive=kept.path, to_group="billing")
        assert replay.run(spark, work, on_progress=quiet).written == 3
        wait_until(lambda: len(got) >= 3, within_s=30)
    assert sorted(got) == [("orders", b"0/%d" % number, f"ID0-{number}") for number in (10, 11, 12)]


@pytest.mark.thorough
def test_messages_are_replayed_to_a_topic_of_the_same_name_in_another_cluster(
    spark: SparkSession, platform: RunningPlatform
) -> None:
    with run_platform(broker={"name": "rescue"}) as other:
        words = ["replay", "orders", "--to", "orders", "-n", platform.name_servers, "--offsets", "0", "9"]
        words += ["--to-name-servers", other.name_servers]
        ran = CliRunner().invoke(app, ["pipeline", *words])
        assert ran.exit_code == 0, ran.output
        assert f"20 messages replayed to orders at {other.name_servers}." in ran.output
        found, originals = read_stored(other, "orders", QUEUES), read_stored(platform, "orders", QUEUES)
        for queue_id in range(QUEUES):
            assert [each.body for each in found[queue_id]] == [each.body for each in originals[queue_id][:10]]
        again = CliRunner().invoke(app, ["pipeline", *words])
        assert "Nothing written" in again.output
        assert read_stored(other, "orders", QUEUES) == found

        part = MessageSelection(topics=("orders",), queue_id=0)
        work = ReplayJob(name_servers=platform.name_servers, selection=part, to="orders", to_name_servers="x:1")
        port = platform.name_servers.rpartition(":")[2]
        with pytest.raises(Refused, match="into itself"):
            replay.run(spark, msgspec.structs.replace(work, to_name_servers=f"localhost:{port}"), on_progress=quiet)
        with pytest.raises(UnknownGroup):  # billing is known to the first cluster only
            billing = msgspec.structs.replace(work, to=None, to_group="billing", to_name_servers=other.name_servers)
            replay.run(spark, billing, on_progress=quiet)


@pytest.mark.thorough
def test_a_group_that_does_not_exist_is_refused(spark: SparkSession, platform: RunningPlatform) -> None:
    wanted = MessageSelection(topics=("orders",), queue_id=0, offsets=(0, 1))
    work = ReplayJob(name_servers=platform.name_servers, selection=wanted, to_group="biling")
    with pytest.raises(UnknownGroup):
        replay.run(spark, work, on_progress=quiet)


def test_invalid_arguments_are_refused_before_spark_starts(platform: RunningPlatform) -> None:
    wanted = MessageSelection(topics=("orders",))
    work = ReplayJob(name_servers=platform.name_servers, selection=wanted, to="again")
    with pytest.raises(Refused, match="either a topic or a group"):
        msgspec.structs.replace(work, to_group="billing")
    with pytest.raises(Refused, match="into itself"):
        msgspec.structs.replace(work, to="orders")
    with pytest.raises(Refused, match="not a range of offsets"):
        MessageSelection(offsets=(3, 2))


def test_equal_jobs_have_equal_keys_and_different_jobs_different_keys(platform: RunningPlatform) -> None:
    work = ReplayJob(name_servers=platform.name_servers, selection=MessageSelection(topics=("orders",)), to="again")
    assert work.key == msgspec.structs.replace(work, options={"sparrow.accessKey": "me"}).key
    assert work.key != msgspec.structs.replace(work, selection=MessageSelection(topics=("orders",), queue_id=1)).key
    assert work.key != msgspec.structs.replace(work, to_name_servers="rescue:9876").key


def test_a_job_that_version_0_2_0_has_done_keeps_its_key() -> None:
    work = ReplayJob(name_servers="a:1", selection=MessageSelection(topics=("orders",)), to="again")
    assert work.key == "replay-093dd377156179046e16a23d"
