"""Brokers, name servers and databases that are away: 503 with a reason, and recovery without a restart."""

import html
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.support.consoles import running_console
from tests.support.wait import wait_until

from sparrow.bus import EventBus
from sparrow.cli.exit_codes import ExitCode
from sparrow.cli.server.platform import Platform
from sparrow.client.blocking.loop_thread import LoopThread
from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings
from sparrow.testing.platform import SMALL_LOG_SETTINGS, RunningPlatform, run_platform

V1 = "/api/v1"


def status(console: httpx.Client, path: str) -> int:
    answer = console.get(f"{V1}{path}")
    if answer.status_code == 503:
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.headers["Retry-After"]
    return answer.status_code


def test_an_absent_platform_gives_503_until_it_is_there(tmp_path: Path) -> None:
    with run_platform(tmp_path / "data") as first:
        name_servers, port = first.name_servers, int(first.address.rpartition(":")[2])
        with running_console(name_servers) as console:
            assert status(console, "/topics") == 200
            first.stop()
            assert status(console, "/topics/orders") == 503
            assert status(console, "/topics") == 200  # the last sample is still shown
            wait_until(lambda: console.get(f"{V1}/overview").json()["error"], within_s=60)
            assert console.get(f"{V1}/clusters").json()[0]["is_reachable"] is False
            assert console.post(f"{V1}/topics", json={"name": "later"}).status_code == 503
            with restarted(tmp_path / "data", port, int(name_servers.rpartition(":")[2])):
                wait_until(lambda: status(console, "/cluster") == 200, within_s=60)
                wait_until(lambda: console.get(f"{V1}/clusters").json()[0]["is_reachable"], within_s=60)
                assert console.post(f"{V1}/topics", json={"name": "later"}).status_code == 201


def test_an_event_says_that_a_platform_is_away_and_the_next_sample_that_it_is_back(tmp_path: Path) -> None:
    with run_platform(tmp_path / "data") as first:
        ports = (int(text.rpartition(":")[2]) for text in (first.address, first.name_servers))
        with running_console(first.name_servers) as console, console.stream("GET", f"{V1}/overview/events") as answer:
            events = (line.removeprefix("event: ") for line in answer.iter_lines() if line.startswith("event: "))
            assert next(events) == "overview"
            first.stop()
            assert "unreachable" in events
            with restarted(tmp_path / "data", *ports):
                assert "overview" in events


def test_an_unreachable_name_server_is_stated_with_one_sentence_everywhere() -> None:
    sentence = (
        "no name server can be reached at 127.0.0.1:1: Connection refused; start one with `sparrow up`, or check the "
        "address and the firewall"
    )
    command = [sys.executable, "-m", "sparrow", "topic", "list", "--name-servers", "127.0.0.1:1"]
    program = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (program.returncode, program.stderr) == (ExitCode.UNREACHABLE, f"sparrow: {sentence}\n")
    with running_console("127.0.0.1:1") as console:
        answer = console.get(f"{V1}/topics/orders")
        assert (answer.status_code, answer.json()["detail"]) == (503, sentence)
        page = console.get("/topics/orders")
        assert sentence in html.unescape(page.text)
        wait_until(lambda: console.get(f"{V1}/clusters").json()[0]["error"] == sentence, within_s=60)


@contextmanager
def restarted(folder: Path, port: int, name_server_port: int) -> Iterator[None]:
    """Run the platform of a folder again, on the same ports."""
    platform = Platform(
        folder,
        name_server=NameServerSettings(port=name_server_port),
        broker=BrokerSettings(port=port),
        log=LogSettings.model_validate(SMALL_LOG_SETTINGS),
    )
    loop = LoopThread("restarted platform")
    try:
        loop.run(platform.start())
        try:
            yield
        finally:
            loop.run(platform.stop())
    finally:
        loop.stop()


def test_one_cluster_that_is_away_does_not_hide_another(platform: RunningPlatform) -> None:
    with running_console({"here": platform.name_servers, "away": "127.0.0.1:1"}) as console:
        assert console.get(f"{V1}/topics").status_code == 200
        assert console.get(f"{V1}/topics", params={"cluster": "away"}).status_code == 503
        wait_until(lambda: not console.get(f"{V1}/clusters").json()[1]["is_reachable"], within_s=60)
        assert [each["is_default"] for each in console.get(f"{V1}/clusters").json()] == [True, False]


def test_a_bus_is_shown_and_steered_and_its_absence_is_said(platform: RunningPlatform, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'bus.db'}"
    bus = EventBus(database, "memory://", app="shop")
    with running_console(platform.name_servers, bus_database=database) as console:
        assert console.get(f"{V1}/bus/stats").status_code in (422, 503)  # the file does not exist yet
        bus.prepare()
        bus.publish("order.created", {"order": 7})
        stats = console.get(f"{V1}/bus/stats")
        assert stats.status_code == 200, stats.text
        assert stats.json()["published"]["open"] == 1
        (event,) = console.get(f"{V1}/bus/published", params={"status": "Open"}).json()["events"]
        assert (event["name"], event["value"]) == ("order.created", {"order": 7})
        assert isinstance(event["id"], str)
        assert console.get(f"{V1}/bus/published/{event['id']}").json() == event
        assert console.get(f"{V1}/bus/published/1").status_code == 404
        body = {"ids": [event["id"], "1"]}
        refused = console.post(f"{V1}/bus/published/actions/requeue", json=body).json()
        assert (refused["state"], [item["done"] for item in refused["items"]]) == ("failed", [False, False])
        where = {"where": {"status": "Open", "name": "order.created"}}
        assert console.post(f"{V1}/bus/received/actions/requeue", json=where).status_code == 422
        assert console.post(f"{V1}/bus/published/actions/cancel", json={"ids": [event["id"]]}).json()["state"] == "done"
        cancelled = {"where": {"status": "Cancelled"}}
        plan = console.post(f"{V1}/bus/published/actions/delete?dry_run=true", json=cancelled).json()
        assert (plan["count"], plan["state"]) == (1, "planned")
        assert console.post(f"{V1}/bus/published/actions/delete", json=cancelled).status_code == 409
        done = console.post(f"{V1}/bus/published/actions/delete?plan={plan['hash']}", json=cancelled)
        assert done.json()["count"] == 1
        assert console.get(f"{V1}/bus/published").json()["events"] == []
        assert console.get(f"{V1}/audit").json()["lines"][0]["action"] == "bus.delete"
    bus.stop()


def test_without_a_bus_there_are_no_routes_of_it(platform: RunningPlatform) -> None:
    with running_console(platform.name_servers) as console:
        assert console.get(f"{V1}/bus/stats").status_code == 404
        assert not [path for path in console.get(f"{V1}/openapi.json").json()["paths"] if "/bus" in path]
