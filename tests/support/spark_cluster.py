"""A standalone Spark cluster for tests: a master and workers as processes that can be killed.

Each worker is a machine of its own to Spark: it listens on another loopback address, because a speculative attempt runs
on another host only.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
from tests.support.databases import _free_port
from tests.support.wait import wait_until

from sparrow.spark.runtime.class_archive import spark_home
from sparrow.spark.runtime.java import cache_directory, find_java
from sparrow.spark.runtime.session import QUICK_START_OPTIONS, spark_environment

ROOT = Path(__file__).resolve().parents[2]
START_S = 120.0
"""How long a process may take to start on a busy machine."""
GONE_S = 60.0
MASTER_HOST = "127.0.0.1"
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class ClusterProcess:
    """A master or worker with all processes that it has started: executors, and their Python workers."""

    def __init__(self, folder: Path, environment: dict[str, str], *words: str) -> None:
        home = spark_home(os.environ)
        assert home is not None
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [home / "bin" / "spark-class", *words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Wait until the process has logged this text."""

        def has_said() -> bool:
            assert self._process.poll() is None, f"the process ended:\n{self.said[-4000:]}"
            return text in self.said

        wait_until(has_said, within_s=START_S)

    def executors(self) -> list[int]:
        """Return the ids of the executors that the worker has started."""
        return [pid for pid in self._pids() if EXECUTOR in _command(pid)]

    def kill(self) -> None:
        """Kill all processes at once, as the failure of a machine does."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Kill all processes, and those that they start meanwhile."""
        self.kill()
        wait_until(lambda: self.kill() or not self._pids(), within_s=GONE_S)

    def _pids(self) -> list[int]:
        found = []
        for pid in psutil.pids():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(pid) == self._process.pid and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    found.append(pid)
        return found


def _command(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return []


class SparkCluster:
    """A running cluster."""

    def __init__(self, url: str, workers: list[ClusterProcess]) -> None:
        self.url, self.workers = url, workers


@contextmanager
def standalone_cluster(folder: Path, *, workers: int = 2) -> Iterator[SparkCluster]:
    """Run a master and workers with one core and one executor each; kill everything on exit."""
    with spark_environment(find_java(), cache_directory(os.environ)):
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(QUICK_START_OPTIONS),
            "SPARK_LOCAL_DIRS": str(folder),
        }
    port = str(_free_port())
    url = f"spark://{MASTER_HOST}:{port}"
    with ExitStack() as stack:

        def start(name: str, *words: str) -> ClusterProcess:
            (folder / name).mkdir(parents=True)
            process = ClusterProcess(folder / name, environment, *words, "--webui-port", "0")
            stack.callback(process.stop)
            return process

        master = start("master", MASTER, "--host", MASTER_HOST, "--port", port)
        master.wait_for("Starting Spark master")
        started = [
            start(
                f"worker-{number}",
                *(WORKER, "--host", f"127.0.0.{number + 1}", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(folder / f"worker-{number}"), url),
            )
            for number in range(1, workers + 1)
        ]
        for worker in started:
            worker.wait_for("Successfully registered with master")
        yield SparkCluster(url, started)
