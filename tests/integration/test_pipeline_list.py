"""`sparrow pipeline list`: declared pipelines with their state, as a table and as the documented JSON."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.json_output import decode_printed
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
from typer.testing import CliRunner

from sparrow.cli.exit_codes import ExitCode, exit_code_of
from sparrow.cli.main import app
from sparrow.operations.errors import NotFound
from sparrow.spark.pipelines.status import StatusFolder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    declare_pipelines(tmp_path / "pipelines")
    return tmp_path / "pipelines"


def has_reported_batches(folder: Path) -> bool:
    status = StatusFolder(folder / "status").read(REVENUE)
    return status is not None and status.queries != []


def test_json_has_the_state_and_the_figures_of_each_pipeline(folder: Path) -> None:
    with reporting_pipeline(folder):
        wait_until(lambda: has_reported_batches(folder))
        done = CliRunner().invoke(app, ["pipeline", "list", str(folder), "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    rows = decode_printed("pipeline list", done.stdout)
    broken, nightly, revenue = rows
    assert (broken.name, broken.state, broken.started_ms) == (BROKEN, "invalid", None)
    assert "needs at least one source" in broken.error
    assert (nightly.name, nightly.state, nightly.trigger, nightly.rows) == (NIGHTLY, "idle", "available-now", None)
    assert (revenue.name, revenue.state) == (REVENUE, "running")
    assert (revenue.rows, revenue.lag, revenue.error) == (BATCHES * BATCH_ROWS, 3 * QUEUES, None)
    assert revenue.started_ms <= revenue.updated_ms


def test_program_prints_rows_of_the_folder_that_the_settings_name(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sparrow.toml").write_text('[console]\npipelines_folder = "pipelines"\n')
    done = subprocess.run(
        [sys.executable, "-m", "sparrow", "pipeline", "list"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    heading, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert heading[:3] == ["pipeline", "state", "trigger"], done.stderr
    assert [row[:2] for row in rows] == [[BROKEN, "invalid"], [NIGHTLY, "idle"], [REVENUE, "idle"]]


def test_a_folder_without_pipelines_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["pipeline", "list"])
    assert (done.exit_code, done.stdout) == (0, "")
    assert "put a .toml file there" in done.stderr
    missing = CliRunner().invoke(app, ["pipeline", "list", "nowhere"])
    assert isinstance(missing.exception, NotFound), missing.output
    assert exit_code_of(missing.exception) is ExitCode.NOT_FOUND
