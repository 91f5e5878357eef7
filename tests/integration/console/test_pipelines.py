"""Pipelines over the REST API: declared ones, one that reports, and processes that the console starts.

Queries run in `tests/spark`; here a process ends early because there is no Java, or reports without Spark.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.console.test_access import TOKENS, bearer
from tests.integration.console.test_api import V1, ok, problem
from tests.support.consoles import running_console
from tests.support.pipelines import (
    BATCH_ROWS,
    BATCHES,
    BROKEN,
    NIGHTLY,
    QUEUES,
    REVENUE,
    declare_pipelines,
    reporting_pipeline,
)
from tests.support.wait import wait_until

from sparrow.console.masks import HIDDEN
from sparrow.spark.pipelines.status import StatusFolder
from sparrow.testing.platform import RunningPlatform


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    declare_pipelines(tmp_path / "pipelines")
    return tmp_path / "pipelines"


@pytest.fixture
def pipelines(folder: Path, platform: RunningPlatform) -> Iterator[httpx.Client]:
    with running_console(platform.name_servers, pipelines_folder=str(folder)) as client:
        yield client


def states(console: httpx.Client) -> dict[str, str]:
    return {each["name"]: each["state"] for each in ok(console.get(f"{V1}/pipelines"))["pipelines"]}


def test_a_console_without_a_folder_has_no_pipelines(platform: RunningPlatform) -> None:
    with running_console(platform.name_servers) as console:
        assert ok(console.get(f"{V1}/pipelines")) == {"folder": None, "pipelines": []}
        assert "--pipelines" in problem(console.get(f"{V1}/pipelines/x"), 404)["detail"]


def test_a_running_pipeline_shows_its_batches_and_is_asked_to_stop(pipelines: httpx.Client, folder: Path) -> None:
    assert states(pipelines) == {REVENUE: "idle", NIGHTLY: "idle", BROKEN: "invalid"}
    with reporting_pipeline(folder) as reporter:
        wait_until(lambda: ok(pipelines.get(f"{V1}/pipelines/{REVENUE}"))["run"]["queries"] != [])
        found = ok(pipelines.get(f"{V1}/pipelines/{REVENUE}"))
        assert (found["state"], found["is_own"], found["can_start"]) == ("running", False, False)
        assert [part["kind"] for part in found["parts"]] == ["source", "step", "sink"]
        (query,) = found["run"]["queries"]
        assert (query["batches"], query["rows"], query["lag"]) == (BATCHES, BATCHES * BATCH_ROWS, 3 * QUEUES)
        assert len(query["queues"]) == QUEUES
        assert query["recent"][-1]["duration_ms"] > 0
        assert "runs already" in problem(pipelines.post(f"{V1}/pipelines/{REVENUE}/start"), 422)["detail"]
        with pytest.raises(Exception, match="runs already"), reporting_pipeline(folder):
            pass
        assert not reporter.is_stop_requested()
        assert ok(pipelines.post(f"{V1}/pipelines/{REVENUE}/stop"))["state"] == "stopping"
        assert reporter.is_stop_requested()
    assert states(pipelines)[REVENUE] == "stopped"
    problem(pipelines.post(f"{V1}/pipelines/{REVENUE}/stop"), 422)
    assert not StatusFolder(folder / "status").is_stop_requested(REVENUE)
    lines = ok(pipelines.get(f"{V1}/audit?limit=5"))["lines"]
    assert ("pipeline.stop", "done") in [(line["action"], line["result"]) for line in lines]


def test_a_run_that_fails_says_why(pipelines: httpx.Client, folder: Path) -> None:
    with pytest.raises(ValueError, match="no such column"), reporting_pipeline(folder):
        raise ValueError("no such column")
    found = ok(pipelines.get(f"{V1}/pipelines/{REVENUE}"))
    assert (found["state"], found["error"], found["can_start"]) == ("failed", "no such column", True)


def test_errors_of_runs_are_for_admins_where_messages_are_hidden(folder: Path, platform: RunningPlatform) -> None:
    with pytest.raises(ValueError, match="card 4111"), reporting_pipeline(folder):
        raise ValueError("card 4111")
    masks = [{"topics": ["payments"], "fields": ["card"]}]
    settings: dict[str, Any] = {"pipelines_folder": str(folder), "auth": True, "tokens": TOKENS, "masks": masks}
    with running_console(platform.name_servers, **settings) as console:
        for path in ("/pipelines", f"/pipelines/{REVENUE}"):
            assert "card 4111" in console.get(V1 + path, headers=bearer("anna")).text
            seen = console.get(V1 + path, headers=bearer("olga"))
            assert (HIDDEN in seen.text, "card 4111" in seen.text) == (True, False), path
        assert "needs at least one source" in console.get(f"{V1}/pipelines", headers=bearer("olga")).text


def test_a_process_that_died_is_not_taken_for_a_running_one(
    pipelines: httpx.Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reporting_pipeline(folder):
        assert states(pipelines)[REVENUE] == "running"
        last = (folder / "status" / f"{REVENUE}.json").read_bytes()
    (folder / "status" / f"{REVENUE}.json").write_bytes(last)  # what a killed process leaves behind
    monkeypatch.setattr("sparrow.spark.pipelines.folder.SILENT_AFTER_MS", -1)
    found = ok(pipelines.get(f"{V1}/pipelines/{REVENUE}"))
    assert (found["state"], found["can_start"]) == ("silent", True)


def test_a_pipeline_that_cannot_start_shows_its_output(
    pipelines: httpx.Client, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ok(pipelines.post(f"{V1}/pipelines/{NIGHTLY}/start"))["state"] == "starting"
    wait_until(lambda: states(pipelines)[NIGHTLY] == "failed", within_s=120)
    found = ok(pipelines.get(f"{V1}/pipelines/{NIGHTLY}"))
    assert "Java" in found["error"] + found["output"]
    assert "cannot be started" in problem(pipelines.post(f"{V1}/pipelines/{BROKEN}/start"), 422)["detail"]
    problem(pipelines.post(f"{V1}/pipelines/nothing/start"), 404)


def test_a_file_with_a_name_that_is_taken_is_named(pipelines: httpx.Client, folder: Path) -> None:
    (folder / "second.toml").write_text((folder / "revenue.toml").read_text())
    found = {each["name"]: each for each in ok(pipelines.get(f"{V1}/pipelines"))["pipelines"]}
    assert found["second"]["state"] == "invalid"
    assert "declares the same name" in found["second"]["error"]
