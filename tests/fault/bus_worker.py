"""Child processes of the bus's fault tests: workers that share tables and a broker and are killed.

As a program it reads jobs from standard input, one JSON line each, and forks a worker for each job. It forks because
an interpreter needs more time to start than a worker has to live. It writes

    started NUMBER PID
    ready PID 0
    ended PID STATUS

(ready: the bus of the worker runs and has its connections to the database)

and at the end of its input it kills all remaining workers.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

# Import the drivers once before the forks, not in each worker.
import aiosqlite  # noqa: F401
import asyncmy  # noqa: F401
import asyncpg  # noqa: F401
import msgspec
import psycopg  # noqa: F401
import pymysql  # noqa: F401
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from tests.fault.bus_kill_points import arm, die

from sparrow.bus import Headers, Retry, fixed
from sparrow.bus.aio import EventBus
from sparrow.bus.transports.sparrow.transport import SparrowTransport
from sparrow.bus.transports.spi import Envelope, Transport
from sparrow.bus.worker.maintenance import BusMaintenance
from sparrow.model.errors import Unavailable

TOPIC = "things"
REAP_S = 0.01
ROOT = Path(__file__).resolve().parents[2]
FAST_RETRY = Retry(max=15, backoff=fixed(0.05))


class Job(msgspec.Struct, kw_only=True):
    """The description of a worker."""

    database: str
    broker: str
    """Addresses of the name servers."""
    seed: int = 0
    settings: dict[str, Any] = {}
    """Fields of `BusSettings`."""
    skips_locked: bool = True
    """False: behave as if the database had no SKIP LOCKED."""
    send_failure_chance: float = 0.0
    """The probability that a send is refused."""
    handler_failure_chance: float = 0.0
    outlive_chance: float = 0.0
    """The probability that a handler runs longer than its lease; such workers do not renew leases."""
    runs_file: str = ""
    """The path of a file that records each call of a handler."""
    dies_at: str | None = None
    """One of the kill points in `bus_points`."""
    publishes: list[int] | None = None
    """Numbers of the events that the worker publishes before it dies; it does nothing else."""
    clock_shift_s: float = 0.0
    service: str | None = None
    """A service of `examples/bus_two_services.py`, "orders" or "billing"; None: a service that writes a row per event.
    """


def forbid_skip_locked(bus: EventBus) -> None:
    """Behave as with MySQL 5.7, which has no SKIP LOCKED."""
    real = bus.core.prepare

    async def prepare() -> None:
        await real()
        bus.core.context.use(replace(bus.core.context.sql, skips_locked=False))

    bus.core.prepare = prepare  # type: ignore[method-assign]


# -- one worker -------------------------------------------------------------------------------------------------------


async def work(job: Job, report_ready: Callable[[], object]) -> None:
    """Run a worker until it is killed or asked to end."""
    if job.clock_shift_s:
        shift_clock(job.clock_shift_s)
    transport = SparrowTransport(job.broker, commit_interval_ms=200)
    bus = (
        make_row_writing_bus(job, transport)
        if job.service is None
        else make_service(job.service, job.database, transport)
    )
    bus.core.settings = replace(bus.settings, retry=FAST_RETRY, **job.settings)
    if job.dies_at is not None:
        arm(bus, job.dies_at)
    if job.publishes is not None:
        await publish(bus, job.publishes, job.service)
        die()
    if job.send_failure_chance:
        refuse_some_sends(transport, random.Random(job.seed), job.send_failure_chance)
    if job.outlive_chance:
        BusMaintenance.heartbeat = no_heartbeat  # type: ignore[method-assign]
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    async with bus:
        report_ready()
        await leave.wait()


async def publish(bus: EventBus, numbers: Sequence[int], service: str | None) -> None:
    for number in numbers:
        if service is not None:
            await load_two_services().place_order(bus, load_two_services().Order(number, number))
        else:
            async with AsyncSession(bus.database.async_engine) as session, session.begin():
                await bus.publish(TOPIC, {"n": number}, session=session)


def make_service(name: str, database: str, transport: Transport) -> EventBus:
    made: EventBus = getattr(load_two_services(), f"{name}_service")(database, transport)
    return made


def make_row_writing_bus(job: Job, transport: Transport) -> EventBus:
    """Insert a row into `effects` for each event; a handler that runs twice inserts two."""
    bus = EventBus(job.database, transport, app="fault")
    if not job.skips_locked:
        forbid_skip_locked(bus)
    rng = random.Random(job.seed)
    lease_s = job.settings.get("lease_s", bus.settings.lease_s)
    keeps_others_out = bus.database.kind == "sqlite"  # its open transaction blocks claims of other workers
    runs = os.open(job.runs_file, os.O_CREAT | os.O_APPEND | os.O_WRONLY) if job.runs_file else None

    @bus.subscribe(TOPIC)
    async def write_row(value: dict[str, Any], headers: Headers, session: AsyncSession) -> None:
        if runs is not None:
            os.write(runs, f"{value['n']}\n".encode())
        late = rng.random()
        if late < (job.outlive_chance if keeps_others_out else job.outlive_chance / 2):
            await asyncio.sleep(lease_s * 1.5)
        await session.execute(
            text("INSERT INTO effects (message, n, order_key, grp) VALUES (:id, :n, :key, :grp)"),
            {"id": headers.id, "n": value["n"], "key": value.get("key", ""), "grp": headers["cap-msg-group"]},
        )
        if job.outlive_chance / 2 <= late < job.outlive_chance and not keeps_others_out:
            await asyncio.sleep(lease_s * 1.5)
        if rng.random() < job.handler_failure_chance:
            raise OSError("injected failure")

    return bus


@functools.cache
def load_two_services() -> Any:
    """Import the example as a module."""
    spec = importlib.util.spec_from_file_location("bus_two_services", ROOT / "examples" / "bus_two_services.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def refuse_some_sends(transport: SparrowTransport, rng: random.Random, chance: float) -> None:
    real = transport.send

    async def send(envelopes: Sequence[Envelope]) -> Sequence[Exception | None]:
        refused = [rng.random() < chance for _ in envelopes]
        outcomes = iter(await real([one for one, no in zip(envelopes, refused, strict=True) if not no]))
        return [Unavailable("injected failure") if no else next(outcomes) for no in refused]

    transport.send = send  # type: ignore[method-assign]


async def no_heartbeat(_: BusMaintenance) -> None: ...


def shift_clock(seconds: float) -> None:
    """Shift the wall clock of this process; the database's clock stays right."""
    real_s, real_ns = time.time, time.time_ns
    time.time = lambda: real_s() + seconds
    time.time_ns = lambda: real_ns() + int(seconds * 1e9)

    class Kind(type):
        """Delegates everything but `now` to the real class, including instance checks."""

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, datetime)

        def __getattr__(cls, name: str) -> Any:
            return getattr(datetime, name)

        def __call__(cls, *args: Any, **kwargs: Any) -> datetime:
            return datetime(*args, **kwargs)

    class Off(metaclass=Kind):
        @staticmethod
        def now(tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(seconds=seconds)

    for name, module in list(sys.modules.items()):
        if name.startswith("sparrow.") and getattr(module, "datetime", None) is datetime:
            module.datetime = Off  # type: ignore[attr-defined]


# -- the parent of all workers ----------------------------------------------------------------------------------------


def main() -> None:
    children: set[int] = set()
    rest = b""
    while True:
        if select.select([0], [], [], REAP_S)[0]:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                number, _, said = line.partition(b" ")
                pid = fork(msgspec.json.decode(said, type=Job))
                children.add(pid)
                report(b"started %b %d" % (number, pid))
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                children.discard(pid)
                report(b"ended %d %d" % (pid, os.waitstatus_to_exitcode(status)))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def report(line: bytes) -> None:
    """Write a line at once: workers write to the same pipe, and an unbuffered `print` writes each word by itself."""
    os.write(1, line + b"\n")


def fork(job: Job) -> int:
    pid = os.fork()
    if pid:
        return pid
    reports = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    status = 1
    try:
        asyncio.run(work(job, lambda: os.write(reports, b"ready %d 0\n" % os.getpid())))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    load_two_services()  # before the forks
    main()
