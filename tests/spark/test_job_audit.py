"""The audit finds planted losses and duplicates with their ids, and reports nothing where there are none."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq
import pytest
from tests.support.json_output import decode_printed
from tests.support.wait import wait_until
from typer.testing import CliRunner

from sparrow import client, clock
from sparrow.cli.main import app
from sparrow.client import trace_records
from sparrow.client.consume.retry import RetryLater
from sparrow.client.trace_records import ConsumeEndTrace, PublishTrace
from sparrow.model.errors import Refused
from sparrow.model.message import Message, StoredMessage
from sparrow.model.protocol import PROPERTY_UNIQUE_KEY, TRACE_TOPIC
from sparrow.spark.jobs.audit.job import AuditJob, run
from sparrow.spark.jobs.audit.report import AuditReport
from sparrow.spark.jobs.time_span import JobTimeSpan
from sparrow.testing import RunningPlatform

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first job of a session starts Python processes, each of which takes seconds on a busy machine.
pytestmark = pytest.mark.timeout(300)


def send(
    platform: RunningPlatform,
    topic: str,
    bodies: Sequence[str],
    *,
    traced: bool = True,
    tags: str | None = None,
    **properties: str,
) -> list[str]:
    """Send messages and return their ids."""
    with client.Producer(platform.name_servers, group="shop", trace=traced) as producer:
        return [producer.send(Message(topic, body, tags=tags, properties=properties)).message_id for body in bodies]


def handle(
    platform: RunningPlatform, topic: str, group: str, count: int, handler: Callable[[StoredMessage], object]
) -> None:
    """Run a traced consumer until its handler has been called this many times."""
    calls: list[str] = []

    def counted(message: StoredMessage) -> None:
        calls.append(message.unique_key or "")
        handler(message)

    with client.Consumer(platform.name_servers, group=group, trace=True, consume_from="first") as consumer:
        consumer.subscribe(topic)
        consumer.start(counted)
        wait_until(lambda: len(calls) >= count, within_s=30)


def note(platform: RunningPlatform, *traces: trace_records.TraceRecord) -> None:
    """Send trace records as clients would."""
    with client.Producer(platform.name_servers) as producer:
        producer.send(Message(TRACE_TOPIC, trace_records.encode(traces)))


def findings(audited: AuditReport) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for hour in audited.hours:
        for finding, ids in hour.findings.items():
            assert ids.count == len(ids.first)
            found.setdefault(finding, set()).update(ids.first)
    return found


def total(audited: AuditReport) -> list[int]:
    """Return the sums of sent, stored, handled and ok, because a run may cross an hour."""
    names = ("sent", "stored", "handled", "ok")
    return [sum(getattr(hour, name) or 0 for hour in audited.hours) for name in names]


@pytest.mark.thorough
def test_a_platform_without_losses_is_reported_as_clean(spark: SparkSession, platform: RunningPlatform) -> None:
    send(platform, "T", [f"{number}" for number in range(40)])
    failed: set[str] = set()

    def handler(message: StoredMessage) -> None:
        if message.body == b"7" and not failed:
            failed.add("7")
            raise RetryLater(1)  # retried, which counts as handled once

    handle(platform, "T", "readers", 41, handler)
    audited = run(spark, AuditJob(name_servers=platform.name_servers, topics=("T",), groups=("readers",)))
    assert findings(audited) == {}
    assert audited.is_clean
    assert total(audited) == [40, 40, 40, 40]
    assert (audited.without_id, audited.elsewhere, audited.notes) == (0, 0, ())


@pytest.mark.thorough
def test_planted_losses_and_duplicates_are_found_with_their_ids(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    now = clock.now_ms()
    good = send(platform, "T", [f"{number}" for number in range(30)])
    (doubled,) = send(platform, "T", ["twice"])
    send(platform, "T", ["twice"], traced=False, **{PROPERTY_UNIQUE_KEY: doubled})
    (stranger,) = send(platform, "T", ["from nowhere"], traced=False)
    handle(platform, "T", "readers", 33, lambda message: None)
    unread = send(platform, "T", ["too late 1", "too late 2"])
    send(platform, "other", ["of another topic"])
    again = ConsumeEndTrace(
        request_id="R", message_id=good[3], cost_ms=1, is_success=True, time_ms=now + 1, group="readers"
    )
    lost = [PublishTrace(time_ms=now, group="shop", topic="T", message_id=f"LOST{number}") for number in range(3)]
    refused = msgspec.structs.replace(lost[0], message_id="REFUSED", is_success=False)
    note(platform, *lost, refused, again, msgspec.structs.replace(again, message_id="OTHER"))

    folder = tmp_path / "audit"
    audit = AuditJob(name_servers=platform.name_servers, topics=("T",), groups=("readers", "idle"), parquet=str(folder))
    audited = run(spark, audit)
    of_readers = msgspec.structs.replace(audited, hours=tuple(h for h in audited.hours if h.group == "readers"))
    assert not audited.is_clean
    assert findings(of_readers) == {
        "missing_in_store": {"LOST0", "LOST1", "LOST2"},
        "doubled_in_store": {doubled},
        "unknown": {stranger},
        "missing_in_handling": set(unread),
        "doubled_in_handling": {doubled, good[3]},
    }
    assert total(of_readers) == [30 + 1 + 2 + 3, 30 + 2 + 1 + 2, 30 + 2 + 1 + 1, 29]
    assert audited.elsewhere == 1  # OTHER

    rows = pq.read_table(folder / "findings").to_pylist()
    assert len(rows) == 3 + 1 + 1 + 2 + 2 + (30 + 1 + 1 + 2)
    idle = {row["msg_id"] for row in rows if row["group"] == "idle"}
    assert idle == {*good, doubled, stranger, *unread}
    assert {row["msg_id"] for row in rows if row["finding"] == "missing_in_store"} == {"LOST0", "LOST1", "LOST2"}
    assert pq.read_table(folder / "hours").num_rows == len(audited.hours)


@pytest.mark.thorough
def test_transactions_count_only_when_committed(spark: SparkSession, platform: RunningPlatform) -> None:
    with client.Producer(platform.name_servers, group="shop", trace=True) as producer:
        with producer.transaction(Message("T", "kept")):
            pass
        with pytest.raises(ValueError, match="no"), producer.transaction(Message("T", "dropped")):
            raise ValueError("no")
    audited = run(spark, AuditJob(name_servers=platform.name_servers, topics=("T",)))
    assert findings(audited) == {}
    assert total(audited) == [1, 1, 0, 1]


@pytest.mark.thorough
def test_tables_of_an_outbox_and_an_inbox_are_compared_by_a_property(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    for number in range(6):
        send(platform, "T", ["event"], traced=False, **{"cap-msg-id": f"event-{number}"})
    send(platform, "T", ["without"], traced=False)
    outbox, inbox = tmp_path / "outbox.csv", tmp_path / "inbox.json"
    with outbox.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["Id", "Topic", "Added"])
        rows.writerows([f"event-{number}", "T", "2026-01-31 12:30:00"] for number in range(1, 8))
    handled = [0, 1, 2, 2, 3, 5]
    inbox.write_bytes(b"\n".join(msgspec.json.encode({"Id": f"event-{n}", "Group": "readers"}) for n in handled))
    audit = AuditJob(
        name_servers=platform.name_servers,
        topics=("T",),
        groups=("readers",),
        sent=str(outbox),
        handled=str(inbox),
        match="property:cap-msg-id",
        id_column="Id",
    )
    audited = run(spark, audit)
    assert findings(audited) == {
        "missing_in_store": {"event-6", "event-7"},
        "unknown": {"event-0"},
        "missing_in_handling": {"event-4"},
        "doubled_in_handling": {"event-2"},
    }
    assert audited.without_id == 1
    by_hour = {hour.hour_ms: hour for hour in audited.hours}
    assert by_hour[1_769_860_800_000].sent == 7  # 2026-01-31 12:00 UTC


@pytest.mark.thorough
def test_a_topic_of_ids_defines_the_handled_messages(spark: SparkSession, platform: RunningPlatform) -> None:
    ids = send(platform, "T", ["1", "2", "3"], traced=False)
    send(platform, "done", [ids[0], msgspec.json.encode({"msg_id": ids[1]}).decode()], traced=False)
    audit = AuditJob(
        name_servers=platform.name_servers, topics=("T",), groups=("readers",), sent="none", handled="topic:done"
    )
    audited = run(spark, audit)
    assert findings(audited) == {"missing_in_handling": {ids[2]}}
    assert {hour.sent for hour in audited.hours} == {None}


@pytest.mark.thorough
def test_only_ids_in_the_time_span_and_with_the_tags_are_audited(
    spark: SparkSession, platform: RunningPlatform
) -> None:
    send(platform, "T", ["early"], tags="paid")
    since = clock.now_ms() + 1
    wait_until(lambda: clock.now_ms() > since)
    (inside,) = send(platform, "T", ["inside"], tags="paid")
    send(platform, "T", ["of another tag"], tags="open")
    wait_until(lambda: clock.now_ms() > since + 1)
    until = clock.now_ms()
    wait_until(lambda: clock.now_ms() > until)
    send(platform, "T", ["late"], tags="paid")
    audit = AuditJob(
        name_servers=platform.name_servers,
        topics=("T",),
        groups=("idle",),
        tags=("paid",),
        span=JobTimeSpan(since, until),
    )
    audited = run(spark, audit)
    assert findings(audited) == {"missing_in_handling": {inside}}
    assert total(audited) == [1, 1, 0, 0]


@pytest.mark.thorough
def test_an_audit_that_cannot_be_answered_is_refused(
    spark: SparkSession, platform: RunningPlatform, tmp_path: Path
) -> None:
    send(platform, "T", ["1"], traced=False)
    with pytest.raises(Refused, match="trace=True"):
        run(spark, AuditJob(name_servers=platform.name_servers, topics=("T",)))
    with pytest.raises(Refused, match="contain no properties"):
        AuditJob(name_servers=platform.name_servers, topics=("T",), match="property:x")
    with pytest.raises(Refused, match="cannot match"):
        AuditJob(name_servers=platform.name_servers, topics=("T",), match="id")
    table = tmp_path / "sent.csv"
    table.write_text("name\nx\n")
    with pytest.raises(Refused, match="no column 'msg_id': set --id-column to one of name"):
        run(spark, AuditJob(name_servers=platform.name_servers, topics=("T",), sent=str(table)))


@pytest.mark.thorough
def test_the_exit_status_of_the_command_tells_the_result(spark: SparkSession, platform: RunningPlatform) -> None:
    runner = CliRunner()
    words = ["pipeline", "audit", "T", "--name-servers", platform.name_servers, "--settle", "0"]
    (sent,) = send(platform, "T", ["1"])
    clean = runner.invoke(app, [*words, "--json"])
    assert clean.exit_code == 0, clean.output
    assert decode_printed("pipeline audit", clean.stdout).clean
    found = runner.invoke(app, [*words, "--group", "idle"])
    assert found.exit_code == 1
    assert f"1 missing in handling: {sent}\n" in found.stdout
    failed = runner.invoke(app, [*words, "--match", "nothing"])
    assert failed.exit_code == 2
    assert "cannot match" in failed.stderr
