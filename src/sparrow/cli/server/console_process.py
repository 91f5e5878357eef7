"""The console beside `sparrow up`: a process of its own, so that pages cost the broker's loop nothing."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import typer

from sparrow.cli.settings import load_settings
from sparrow.model.tls import AUTHORITIES_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE
from sparrow.net.access.tls import server_tls
from sparrow.settings import Settings

PIPELINES_FOLDER = "pipelines"
"""The folder of declared pipelines in the data directory."""
_STOP_TIMEOUT_S = 8.0
"""Longer than the console gives the pipelines that it runs."""


@asynccontextmanager
async def running_console(settings: Settings, name_servers: str, data: Path) -> AsyncIterator[None]:
    """Run the console while the block runs, if the settings say so. Without it, the servers work all the same.

    Pipelines are declared in a folder of the data directory, unless the settings name another one.
    """
    if not settings.console.enabled:
        yield
        return
    if importlib.util.find_spec("fastapi") is None or importlib.util.find_spec("uvicorn") is None:
        typer.echo('no console: pip install "sparrowmq[console]"', err=True)
        yield
        return
    process = await _start(settings, name_servers, data / PIPELINES_FOLDER)
    forwarding = asyncio.create_task(_forward_output(process))
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()  # not SIGTERM: the console would say, too, that it stops
        try:
            await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        await forwarding


async def _start(settings: Settings, name_servers: str, pipelines: Path) -> asyncio.subprocess.Process:
    console, environment = settings.console, dict(os.environ)
    if settings.broker.admin_tokens and "SPARROW_ACCESS_KEY" not in environment:
        access_key, secret = next(iter(settings.broker.admin_tokens.items()))
        environment |= {"SPARROW_ACCESS_KEY": access_key, "SPARROW_SECRET_KEY": secret.get_secret_value()}
    tls = server_tls(settings.broker.net)
    if tls is not None and AUTHORITIES_VARIABLE not in environment:
        files = {AUTHORITIES_VARIABLE: tls.authorities, CERTIFICATE_VARIABLE: tls.certificate, KEY_VARIABLE: tls.key}
        environment |= {variable: file for variable, file in files.items() if file is not None}
    arguments = ["--name-servers", name_servers]
    # Only what the flags of this command have set: the console reads the rest itself, and shows where it comes from.
    usual = load_settings().console
    for flag, value, known in (("--host", console.host, usual.host), ("--port", console.port, usual.port)):
        if value != known:
            arguments += [flag, str(value)]
    if console.pipelines_folder is None:
        arguments += ["--pipelines", str(pipelines)]
    # A session of its own: Ctrl-C reaches only this process, which then stops the console.
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sparrow", "console", *arguments, "--stop-on-stdin-eof"),
        stdin=asyncio.subprocess.PIPE,  # closes when this process ends, even by SIGKILL, and so stops the console
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


async def _forward_output(process: asyncio.subprocess.Process) -> None:
    """Print the console's address, or why there is no console."""
    assert process.stdout is not None
    assert process.stderr is not None

    async def forward(lines: asyncio.StreamReader, *, is_error: bool) -> None:
        async for line in lines:
            text = line.decode(errors="replace").rstrip().replace("with --port", "with --console-port")
            typer.echo(f"console: {text}" if is_error else text, err=is_error)
            sys.stdout.flush()

    await asyncio.gather(forward(process.stdout, is_error=False), forward(process.stderr, is_error=True))
