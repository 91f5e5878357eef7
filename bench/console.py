"""What pages of the console cost with many topics and groups: time and CPU of pages and of samples.

A broker with 1,000 topics of 8 queues and 500 groups runs in a process of its own; the console runs here. Goals: a real
browser has painted the overview within a second, and keeping its charts live takes less than 2 % of a core.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import httpx
import uvloop

from _harness import ROOT, Row, folder_on_disk, is_smoke, report
from broker import broker
from sparrow import Message, QueueRef
from sparrow.client.aio import Admin, Producer
from sparrow.console import create_app
from sparrow.console.server import ConsoleServer
from sparrow.model.topic import Group
from sparrow.settings import ConsoleSettings

sys.path.append(str(ROOT))
from tests.support.chromium import LAUNCH_ARGUMENTS, find_chromium
from tests.support.databases import ServerNotInstalled

TOPICS, QUEUES, GROUPS = (20, 8, 10) if is_smoke() else (1_000, 8, 500)
ROUNDS = 2 if is_smoke() else 10
CREATED_AT_ONCE = 50
SAMPLE_INTERVAL_S = 10
NEVER_MS = 24 * 3600 * 1000
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]"


async def fill(name_servers: str) -> None:
    """Create topics with a message each, and groups that have committed offsets."""
    places = asyncio.Semaphore(CREATED_AT_ONCE)

    async def within_limit(work: Awaitable[object]) -> None:
        async with places:
            await work

    async with Admin(name_servers) as admin, Producer(name_servers) as producer:
        names = [f"topic-{number:04}" for number in range(TOPICS)]
        await asyncio.gather(*(within_limit(admin.create_topic(name, QUEUES)) for name in names))
        await asyncio.gather(*(within_limit(producer.send(Message(name, b"a message"))) for name in names))
        (broker_name,) = next(iter((await admin.clusters()).values())).brokers
        groups = [f"group-{number:03}" for number in range(GROUPS)]
        await asyncio.gather(*(within_limit(admin.create_group(Group(name=name))) for name in groups))
        commits = (
            admin.reset_queue(group, QueueRef(names[number % TOPICS], broker_name, queue), 0)
            for number, group in enumerate(groups)
            for queue in range(QUEUES)
        )
        await asyncio.gather(*map(within_limit, commits))


async def best(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Return the least wall time and the least CPU time of several rounds, in seconds."""
    walls, costs = [], []
    for _ in range(ROUNDS):
        begun, cpu = time.perf_counter(), time.process_time()
        await work()
        walls.append(time.perf_counter() - begun)
        costs.append(time.process_time() - cpu)
    return min(walls), min(costs)


async def paint_times(address: str) -> list[float]:
    """Return the times in s from the request of the overview to its painted content, in a browser without a cache."""
    from playwright.async_api import async_playwright

    times = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=list(LAUNCH_ARGUMENTS))
        try:
            for _ in range(ROUNDS):
                context = await browser.new_context()
                page = await context.new_page()
                await page.goto(address, wait_until="load")
                # Not `wait_for_function`: it evaluates text in the page, which the page's policy forbids.
                while (painted_ms := await page.evaluate(f"{PAINTED}?.startTime")) is None:
                    await asyncio.sleep(0.01)
                times.append(painted_ms / 1000)
                await context.close()
        finally:
            await browser.close()
    return times


async def measure(name_servers: str) -> list[Row]:
    await fill(name_servers)
    app = create_app({"default": name_servers}, settings=ConsoleSettings(sample_interval_ms=NEVER_MS))
    goals = not is_smoke()
    rows = []
    async with app.router.lifespan_context(app):
        sampler = app.state.console.clusters["default"].sampler
        await sampler.latest()
        _, sample_s = await best(sampler.sample)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:

            async def get(path: str) -> None:
                (await client.get(path)).raise_for_status()

            overview_s, overview_cpu_s = await best(lambda: get("/"))
            rows.append(Row("overview", overview_s * 1000, "ms", 1000 if goals else None, at_most=True))
            for name, path in (("topics, by lag", "/topics?sort=-lag"), ("groups, by lag", "/groups?sort=-lag")):
                wall_s, _ = await best(lambda path=path: get(path))  # type: ignore[misc]
                rows.append(Row(name, wall_s * 1000, "ms"))
    async with ConsoleServer(app, "127.0.0.1", 0) as server:
        await app.state.console.clusters["default"].sampler.latest()
        try:
            painted_s = min(await paint_times(server.url))
        except ServerNotInstalled as missing:
            print(missing, file=sys.stderr)
        else:
            rows.append(Row("overview, painted by a browser", painted_s * 1000, "ms", 1000 if goals else None, True))
    rows.append(Row("sample, CPU", sample_s * 1000, "ms"))
    share = (sample_s + overview_cpu_s) / SAMPLE_INTERVAL_S * 100
    rows.append(Row("live overview, share of a core", share, "%", 2 if goals else None, at_most=True))
    return rows


def main() -> None:
    with folder_on_disk() as folder, broker(folder / "data") as (_, _, names):
        report("console", uvloop.run(measure(names)))


if __name__ == "__main__":
    main()
