"""`sparrow doctor`: it finds planted faults, names what to do, and finds nothing on a sound platform."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from tests.support.etcd import etcd_cluster
from tests.support.platforms import SMALL_LOG, broker_settings, running_broker, running_platform
from typer.testing import CliRunner

from sparrow import clock
from sparrow.aio import Admin, Consumer, Producer
from sparrow.broker.server import BrokerServer
from sparrow.cli.doctor.groups import GroupFacts, check_groups
from sparrow.cli.doctor.report import DoctorReport, Severity
from sparrow.cli.doctor.server_rules import check_brokers, check_clocks, check_disks, check_versions
from sparrow.cli.doctor.servers import BrokerFacts, ClockReading
from sparrow.cli.doctor.thresholds import Thresholds
from sparrow.cli.main import app
from sparrow.client import DeadLetter, Message
from sparrow.model.message import StoredMessage
from sparrow.nameserver.server import NameServer
from sparrow.settings import NameServerSettings
from sparrow.testing.platform import SMALL_LOG_SETTINGS

SKEW_MS = 3_600_000


async def run_doctor(folder: Path, name_servers: str, *words: str, program: str = "") -> tuple[DoctorReport, int]:
    """Run the real program in a folder; return its report and exit code."""
    code = f"{program}\nfrom sparrow.__main__ import entry\nentry()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, "doctor", "--json", "--name-servers", name_servers, *words),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 90)
    assert out, err.decode()
    assert process.returncode is not None
    return msgspec.json.decode(out, type=DoctorReport), process.returncode


async def call_doctor(name_servers: str, *words: str) -> tuple[DoctorReport, int]:
    """Call the program in a thread of this process, where a process of its own adds nothing."""
    words = ("doctor", "--json", "--name-servers", name_servers, *words)
    done = await asyncio.to_thread(CliRunner().invoke, app, list(words))
    return msgspec.json.decode(done.stdout, type=DoctorReport), done.exit_code


def causes(report: DoctorReport) -> dict[str, str]:
    """Return the subject of each cause."""
    return {each.cause: each.subject for each in report.diagnoses}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


async def test_sound_platform_has_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sparrow.toml").write_text(f"[broker]\nport = {free_port()}\n[name_server]\nport = {free_port()}\n")
    log = SMALL_LOG.model_copy(update={name: SMALL_LOG_SETTINGS[name] for name in SMALL_LOG_SETTINGS if "disk" in name})
    async with running_platform(tmp_path / "data", log=log) as platform:
        report, code = await call_doctor(platform.name_servers)
    assert [each.text for each in report.diagnoses if each.severity is Severity.PROBLEM] == []
    assert code == 0
    assert {"name servers", "brokers", "disks", "clocks", "versions", "groups", "transactions"} <= {
        check.check for check in report.checks
    }


async def test_faults_of_servers_are_found(tmp_path: Path) -> None:
    """Seven faults: a name server that is away, one that misses a broker, two brokers with one name, a broker at a
    wrong address, one with a wrong clock, a disk above its limit, and a broker where a name server should be."""
    full = SMALL_LOG.model_copy(
        update={"disk_clean_ratio": 0.000001, "disk_force_ratio": 1.0, "disk_refuse_ratio": 1.0}
    )
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(NameServer(NameServerSettings(port=0), kv_path=tmp_path / f"{number}.json"))
            for number in range(2)
        ]
        both = f"{first.address};{second.address}"
        await stack.enter_async_context(
            running_broker(tmp_path / "a", name="only-one", name_servers=str(first.address))
        )
        for number, server in enumerate((first, second)):
            await stack.enter_async_context(
                running_broker(tmp_path / f"twin-{number}", name="twin", name_servers=str(server.address))
            )
        await stack.enter_async_context(
            running_broker(tmp_path / "b", name="lost", name_servers=both, advertised_host="127.0.0.99")
        )
        await stack.enter_async_context(running_broker(tmp_path / "c", name="full", name_servers=both, log=full))
        late = BrokerServer(
            broker_settings(name="late", name_servers=both),
            tmp_path / "d",
            SMALL_LOG,
            now_ms=lambda: clock.now_ms() - SKEW_MS,
        )
        await stack.enter_async_context(late)
        addresses = f"{both};127.0.0.1:{free_port()};{late.address}"
        report, code = await run_doctor(tmp_path, addresses)
    found = causes(report)
    assert code == 1
    assert {"name_server_unreachable", "two_brokers_one_name", "broker_unreachable", "clock"} <= found.keys()
    assert found["two_brokers_one_name"] == "broker twin"
    assert found["broker_unreachable"].startswith("broker lost (127.0.0.99:")
    assert found["clock"].startswith("broker late ")
    assert "disk of broker full" in found["disk_full"]
    texts = " ".join(each.text for each in report.diagnoses)
    assert "does not list broker only-one" in texts
    assert "behind that of this machine" in texts
    assert "is the address of a broker, not of a name server" in texts
    assert all(each.remedy for each in report.diagnoses)


async def test_two_brokers_with_one_name_at_one_name_server_are_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The name server lists one of them at a time: it must tell of both, and of no conflict once one has left."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            NameServer(NameServerSettings(port=0), kv_path=tmp_path / "naming.json")
        )
        twins = [
            await stack.enter_async_context(
                BrokerServer(
                    broker_settings(name="twin", name_servers=str(server.address), register_interval_ms=50),
                    tmp_path / f"twin-{number}",
                    SMALL_LOG,
                )
            )
            for number in range(2)
        ]
        async with asyncio.timeout(60):
            while not server.context.routes.conflicts.current():
                await asyncio.sleep(0.02)
        report, code = await call_doctor(str(server.address))
        await twins[1].stop()
        async with asyncio.timeout(60):
            while server.context.routes.conflicts.current():
                await asyncio.sleep(0.02)
        healed, _ = await call_doctor(str(server.address))
    (found,) = (each for each in report.diagnoses if each.cause == "two_brokers_one_name")
    assert (code, found.subject, found.severity) == (1, "broker twin", Severity.PROBLEM)
    assert all(str(twin.address) in found.text for twin in twins)
    assert "--name" in found.remedy
    assert "two_brokers_one_name" not in causes(healed)
    (line,) = (record.getMessage() for record in caplog.records if "both register" in record.getMessage())
    assert "twin with the id 0" in line


async def test_faults_of_messages_are_found(tmp_path: Path) -> None:
    """Four faults: a group that is behind, a lane that fills up, a dead letter, and a half message."""

    async def refuse(_: StoredMessage) -> None:
        raise DeadLetter("no such customer")

    async with running_platform(tmp_path / "data") as platform, AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(platform.name_servers))
        producer = await stack.enter_async_context(Producer(platform.name_servers, group="shop"))
        await admin.create_topic("alarms", 1, has_lanes=True)
        await admin.reset_offsets("slow", "alarms", "first")
        await producer.send(Message("letters", "x"))
        async with Consumer(platform.name_servers, group="billing", consume_from="first", retries_max=0) as consumer:
            await consumer.subscribe("letters")
            await consumer.start(refuse)
            async with asyncio.timeout(60):
                while not await admin.dead_letters("billing"):
                    await asyncio.sleep(0.05)
        for number in range(20):
            await producer.send(Message("alarms", f"{number}", priority="low"))
        await producer.begin_transaction(Message("letters", "half"))
        report, _ = await run_doctor(tmp_path, platform.name_servers, "--max-lag", "10")
        strict, code = await call_doctor(platform.name_servers, "--max-lag", "10", "--strict")
    found = causes(report)
    assert {"lag": "group slow", "full_lane": "group slow", "dead_letters": "group billing"}.items() <= found.items()
    assert found["half_messages"].startswith("broker sparrow ")
    assert code == 1, strict


async def test_faults_of_this_machine_are_found(tmp_path: Path) -> None:
    """Four faults: few open files, a port in use, a package that is missing, and an etcd that is away."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "sparrow.toml").write_text(
            f'[broker]\nport = {port}\nstore = "mysql://shop@db/messages"\n'
            f'[replication]\netcd = "http://127.0.0.1:{free_port()}"\n'
        )
        program = (
            "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); "
            "sys.modules['asyncmy'] = None"
        )
        report, code = await run_doctor(tmp_path, f"127.0.0.1:{free_port()}", program=program)
    found = causes(report)
    assert code == 1
    assert found["open_files"] == "this machine"
    assert found["port"] == f"port {port} (broker.port)"
    assert found["missing_extra"] == "package asyncmy"
    assert found["etcd"].startswith("etcd http://127.0.0.1:")


async def test_wrong_setting_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sparrow.toml").write_text("[broker]\nprot = 1\n")
    report, code = await call_doctor(f"127.0.0.1:{free_port()}")
    (wrong,) = (each for each in report.diagnoses if each.cause == "settings")
    assert (code, "did you mean broker.port?" in wrong.text) == (1, True)


async def test_replica_set_without_a_leader_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with etcd_cluster() as (etcd,):
        (tmp_path / "sparrow.toml").write_text(f'[replication]\netcd = "{etcd.url}"\n')
        before, _ = await call_doctor(f"127.0.0.1:{free_port()}")
        init = await asyncio.to_thread(CliRunner().invoke, app, ["cluster", "init", "--members", "1,2,3"])
        assert init.exit_code == 0, init.output
        after, _ = await call_doctor(f"127.0.0.1:{free_port()}")
    assert causes(before)["replica_set"] == "replica set sparrow"
    assert causes(after)["no_leader"] == "replica set sparrow"


# -- rules ------------------------------------------------------------------------------------------------------------


def broker(**facts: object) -> BrokerFacts:
    return BrokerFacts(**{"name": "b", "broker_id": 0, "address": "10.0.0.1:10911", **facts})


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"commitLogDiskRatio": "0.5"}, []),
        ({"commitLogDiskRatio": "0.8"}, [(Severity.WARNING, "disk_full")]),
        ({"commitLogDiskRatio": "0.95"}, [(Severity.PROBLEM, "disk_full")]),
        ({"commitLogDiskRatio": "0.5", "diskFreeBytes": "1000"}, [(Severity.PROBLEM, "disk_segment")]),
        ({}, []),
    ],
)
def test_disk_is_judged_by_the_limits_of_the_broker(figures: dict[str, str], expected: list[object]) -> None:
    facts = broker(figures=figures, settings={"mappedFileSizeCommitLog": "1073741824"})
    found = check_disks([facts], Thresholds()).diagnoses
    assert [(each.severity, each.cause) for each in found] == expected


def test_clock_is_judged_by_more_than_the_time_of_the_request() -> None:
    slow = broker(clock=ClockReading.of(10_000, 0, 18_000))
    fast = broker(clock=ClockReading.of(10_000, 4_999, 5_001))
    assert not check_clocks([], [slow], Thresholds()).diagnoses, "a slow request says nothing about a clock"
    (found,) = check_clocks([], [fast], Thresholds()).diagnoses
    assert "5 s ahead of" in found.text


def test_versions_and_open_files_of_brokers_are_compared() -> None:
    old, new = broker(figures={"sparrowVersion": "0.1"}), broker(name="c", figures={"sparrowVersion": "0.2"})
    assert len(check_versions([old, new], "0.2").diagnoses) == 1
    assert len(check_versions([old], "0.2").diagnoses) == 1
    assert not check_versions([new], "0.2").diagnoses
    for used, allowed, severity in (("900", "1000", Severity.PROBLEM), ("10", "1000", Severity.WARNING)):
        facts = broker(figures={"openFiles": used, "openFilesMax": allowed})
        (found,) = check_brokers([facts], Thresholds()).diagnoses
        assert (found.cause, found.severity) == ("open_files", severity)


def test_platform_without_groups_is_sound() -> None:
    assert not check_groups(GroupFacts([], [], []), Thresholds()).diagnoses
