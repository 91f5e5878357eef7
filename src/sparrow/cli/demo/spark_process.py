"""The Spark process of the demo: start it, read its status, and stop it with the demo.

It is a separate process because Java writes to the terminal and PySpark blocks the event loop. Its output goes to
`spark.log` and its progress to `checkpoint`, both in a folder of the demo's data directory; the next run continues from
there. The pipeline is a file in the folder of declared pipelines, so that the console shows it and can start it again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from sparrow.cli.demo.revenue_pipeline import SparkStatus, pipeline_text
from sparrow.cli.server.console_process import PIPELINES_FOLDER

STOP_TIMEOUT_S = 15.0
"""How long a clean stop may take: finish a batch, and end Java."""


class SparkProcess:
    """`async with SparkProcess(name_servers, folder) as spark:` runs the process; `spark.status` is its status."""

    def __init__(self, name_servers: str, data: Path) -> None:
        """Prepare the process. `data` is the data directory of the demo."""
        self._name_servers, self._folder = name_servers, (data / "demo").resolve()
        self._pipelines = (data / PIPELINES_FOLDER).resolve()
        self.log_path = data / "demo" / "spark.log"
        self.status = SparkStatus(state="starting")
        self._process: asyncio.subprocess.Process
        self._status_reader: asyncio.Task[None]

    async def __aenter__(self) -> SparkProcess:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._pipelines.mkdir(parents=True, exist_ok=True)
        file = self._pipelines / "demo.toml"
        file.write_text(pipeline_text(self._name_servers, str(self._folder / "checkpoint")), encoding="utf-8")
        program = (sys.executable, "-m", "sparrow.cli.demo.revenue_pipeline")
        with (self._folder / "spark.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*program, str(file), str(self._pipelines / "status")),
                stdin=asyncio.subprocess.PIPE,  # closes when this process ends, even by a crash
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C goes to this process only, and Java is in a group that can be killed
            )
        self._status_reader = asyncio.create_task(self._read_status())
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        # The process is still starting, or does not stop. A batch that is cut short is repeated exactly once.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._status_reader

    async def _read_status(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.status = msgspec.json.decode(line, type=SparkStatus)
        if self.status.state != "failed":
            code = await self._process.wait()
            self.status = SparkStatus(state="failed", why=f"the process exited with code {code}; see {self.log_path}")
