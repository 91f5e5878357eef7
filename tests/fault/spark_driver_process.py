"""Drivers with all their processes, and checkpoints: tools to kill Spark at chosen moments."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import psutil
from tests.fault import spark_driver
from tests.fault.spark_driver import Plan
from tests.support.server_processes import ENVIRONMENT
from tests.support.wait import eventually

from sparrow.spark.source.offsets import SourceOffsets

DAEMON = "pyspark.daemon"
TASKS, COMMITS = "pyspark.worker", "pyspark.sql.worker.python_streaming_sink_runner"
"""Modules run by Spark's Python daemons: in tasks, and in the driver when a batch is committed."""
GONE_S = 60.0


class Checkpoint:
    """Spark's checkpoint of a query."""

    def __init__(self, plan: Plan) -> None:
        self._folder = Path(plan.checkpoint)

    @property
    def planned(self) -> int:
        """Return the number of the last planned batch; -1: none."""
        return _last(self._folder / "offsets")

    @property
    def committed(self) -> int:
        """Return the number of the last batch that Spark recorded as committed; -1: none."""
        return _last(self._folder / "commits")

    @property
    def query_id(self) -> str | None:
        try:
            return str(json.loads((self._folder / "metadata").read_text())["id"])
        except (FileNotFoundError, ValueError):  # not written yet, or only partly
            return None

    @property
    def took_s(self) -> float:
        """Return the time from the plan to the commit of the last committed batch."""
        number = str(self.committed)
        try:
            first_offsets, done = (os.stat(self._folder / name / number).st_mtime for name in ("offsets", "commits"))
        except FileNotFoundError:
            return 0.0
        return done - first_offsets

    def read_until(self) -> dict[int, int]:
        """Return, by queue, the first offset that no committed batch has read; empty queues are left out."""
        if self.committed < 0:
            return {}
        _version, _settings, offsets = (self._folder / "offsets" / str(self.committed)).read_text().splitlines()
        return {queue.queue_id: at for queue, at in SourceOffsets.from_json(json.loads(offsets)).next.items() if at}


def _last(folder: Path) -> int:
    try:
        return max((int(name) for name in os.listdir(folder) if name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1


class Driver:
    """A session of processes: the script, its JVM, Spark's Python daemons and their workers."""

    def __init__(self, folder: Path, orders: Path) -> None:
        self._folder, self._orders = folder, orders
        self._process: asyncio.subprocess.Process | None = None
        self._sessions: list[int] = []
        self.runs = 0

    async def start(self) -> None:
        self.runs += 1
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(Path(spark_driver.__file__)), str(self._orders)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=ENVIRONMENT,
                cwd=self._folder,
                start_new_session=True,
            )
        self._sessions.append(self._process.pid)

    @property
    def _log(self) -> Path:
        return self._folder / f"driver-{self.runs}.log"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")[-6_000:] if self.runs else ""

    async def kill(self, *, orphans: bool = False) -> None:
        """Kill all processes at once, or only the script and the JVM.

        The Python processes have their own process groups, so killing one group leaves them behind, as the kernel's
        out-of-memory killer does. Some may still send requests to the broker when the next driver begins.
        """
        assert self._process is not None
        for pid in [self._process.pid] if orphans else self._pids(self._sessions[-1:]):
            kill(pid, whole_group=orphans)
        await self._process.wait()

    def workers(self, module: str = TASKS) -> list[int]:
        """Return the ids of Python processes that run tasks, or other work of Spark's daemons."""
        found = []
        for pid in self._pids(self._sessions[-1:]):
            try:
                process = psutil.Process(pid)
                parent = process.parent()
                # Workers are forks of their daemon, and the daemon is a child of the JVM.
                if parent is not None and [DAEMON, module] == process.cmdline()[-2:] == parent.cmdline()[-2:]:
                    found.append(pid)
            except psutil.NoSuchProcess:
                pass
        return found

    async def stop(self) -> None:
        """Kill every remaining process of all drivers."""
        for pid in self._pids(self._sessions):
            kill(pid)
        if self._process is not None:
            await self._process.wait()
        await eventually(lambda: not self._pids(self._sessions), within_s=GONE_S)

    @staticmethod
    def _pids(sessions: list[int]) -> list[int]:
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    if os.getsid(int(name)) in sessions and psutil.Process(int(name)).status() != psutil.STATUS_ZOMBIE:
                        found.append(int(name))
                except (ProcessLookupError, psutil.NoSuchProcess):
                    pass
        return found


def kill(pid: int, *, whole_group: bool = False) -> None:
    """Kill the process if it still exists."""
    try:
        (os.killpg if whole_group else os.kill)(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
