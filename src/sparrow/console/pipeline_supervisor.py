"""Starting and stopping the pipelines of a folder, for the console.

A process that the console started is its child and ends with it. The status folder carries a request to stop to any
process; a child that does not follow it in time is terminated.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from sparrow.client.options import NAME_SERVERS_VARIABLE
from sparrow.model.errors import Busy, Refused
from sparrow.operations.errors import NotFound
from sparrow.spark.pipelines.folder import PipelineFolder, PipelineView

CHILDREN_MAX = 8
"""Pipelines that one console runs at the same time: each is a Java process."""
STOP_TIMEOUT_S = 30.0
"""How long a child may take to finish its batch before it is terminated."""
CLOSE_TIMEOUT_S = 3.0
LOG_TAIL_BYTES = 4_096


class PipelineSupervisor:
    """The pipelines of one folder."""

    def __init__(self, folder: Path, *, name_servers: str) -> None:
        """Create the supervisor. Pipelines that name no name servers use `name_servers`."""
        self._pipelines, self._name_servers = PipelineFolder(folder), name_servers
        self._statuses = self._pipelines.statuses
        self._children: dict[str, asyncio.subprocess.Process] = {}
        self._stops: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Lock()

    @property
    def folder(self) -> Path:
        """Where pipelines are declared."""
        return self._pipelines.path

    async def list_all(self) -> list[PipelineView]:
        """Return all pipelines by name."""
        return [self._with_child(view) for view in await asyncio.to_thread(self._pipelines.read_all)]

    async def get(self, name: str) -> PipelineView:
        """Return a pipeline; raise `NotFound` if there is none of this name."""
        for view in await self.list_all():
            if view.name == name:
                return view
        raise NotFound("pipeline", name, f"put a .toml file with this name into {self.folder}")

    async def read_log(self, name: str) -> str:
        """Return the end of what a process printed that a console started; empty if there is none."""
        return await asyncio.to_thread(_read_end, self._statuses.log_file(name))

    async def start(self, name: str) -> PipelineView:
        """Start a declared pipeline in a process of its own."""
        async with self._starting:
            view = await self.get(name)
            if view.is_active:
                raise Refused(f"pipeline {name!r} runs already: stop it first")
            if view.file is None:
                raise Refused(f"pipeline {name!r} is not declared in {self.folder}: start it where it was started")
            if view.state == "invalid":
                raise Refused(f"pipeline {name!r} cannot be started: {view.error}")
            running = sum(child.returncode is None for child in self._children.values())
            if running >= CHILDREN_MAX:
                raise Busy(f"the console runs {running} pipelines, and more are not allowed: stop one first")
            self._children[name] = await self._spawn(name, Path(view.file))
        return await self.get(name)

    async def stop(self, name: str) -> PipelineView:
        """Ask a running pipeline to stop between two batches. It may take a while."""
        view = await self.get(name)
        if not view.is_active:
            raise Refused(f"pipeline {name!r} does not run")
        await asyncio.to_thread(self._statuses.request_stop, name)
        child = self._children.get(name)
        if child is not None and child.returncode is None:
            task = asyncio.create_task(_end(child, STOP_TIMEOUT_S))
            self._stops.add(task)
            task.add_done_callback(self._stops.discard)
        return await self.get(name)

    async def close(self) -> None:
        """Stop the pipelines that this console started."""
        for child in self._children.values():
            if child.returncode is None:
                child.terminate()
        await asyncio.gather(*(_end(child, CLOSE_TIMEOUT_S) for child in self._children.values()))
        await asyncio.gather(*self._stops)

    async def _spawn(self, name: str, file: Path) -> asyncio.subprocess.Process:
        self._statuses.path.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, NAME_SERVERS_VARIABLE: self._name_servers}
        with self._statuses.log_file(name).open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sparrow", "pipeline", "run", str(file)),
                *("--status-folder", str(self._statuses.path), "--stop-on-stdin-eof"),
                stdin=asyncio.subprocess.PIPE,  # closes when the console ends, even by SIGKILL
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Java is in a group that can be killed
            )

    def _with_child(self, view: PipelineView) -> PipelineView:
        """Add what is known of a child: it may have ended, or not begun to report."""
        child = self._children.get(view.name)
        if child is None:
            return view
        has_reported = view.status is not None and view.status.pid == child.pid
        view = msgspec.structs.replace(view, is_own=child.returncode is None)
        if child.returncode is None and not has_reported:
            return msgspec.structs.replace(view, state="starting", error=None)
        if child.returncode and (not has_reported or view.is_active or view.state == "silent"):
            error = f"its process ended with code {child.returncode}; its output says why"
            return msgspec.structs.replace(view, state="failed", error=error)
        return view


async def _end(child: asyncio.subprocess.Process, timeout_s: float) -> None:
    """Wait for a child, and terminate it if it takes too long. A batch that is cut short is repeated."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await child.wait()
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    await child.wait()


def _read_end(file: Path) -> str:
    try:
        with file.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - LOG_TAIL_BYTES))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""
