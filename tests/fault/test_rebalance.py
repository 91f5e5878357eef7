"""Consumers killed, stopped and added under load: every message is delivered to a consumer.

Some messages are delivered twice: only those that the previous consumer had received and not committed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import chain, zip_longest
from pathlib import Path

import pytest
from tests.fault import killed_consumer
from tests.fault.killed_consumer import GROUP, PREFETCH, TOPIC, WORKERS
from tests.support.platform_driver import PlatformDriver, running_platform_driver
from tests.support.server_processes import ENVIRONMENT
from tests.support.wait import eventually

QUEUES = 8
TRICKLE = 20
GIVEN_AND_NOT_COMMITTED = PREFETCH.count_max + PREFETCH.pull_count_max + WORKERS
"""The most repeats of one queue: messages in progress at a pull's commit, messages of that pull, and messages
finished out of order.
"""


class Child:
    """A consumer in its own process, and its records so far."""

    def __init__(self, name_servers: str, path: Path) -> None:
        self._words = (name_servers, str(path))
        self._path, self._read_bytes = path, 0
        self.given: list[tuple[int, int]] = []
        """Queue and offset of each message, in order."""
        self.shares: list[list[int]] = []
        self.process: asyncio.subprocess.Process

    async def start(self) -> None:
        script = str(Path(killed_consumer.__file__))
        self.process = await asyncio.create_subprocess_exec(sys.executable, script, *self._words, env=ENVIRONMENT)

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    async def end(self, number: signal.Signals) -> None:
        if self.is_alive:
            self.process.send_signal(number)
            await self.process.wait()
        self.look()

    def look(self) -> None:
        """Read the new lines of its file."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole, _, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + 1 if whole else 0
        for line in whole.decode().splitlines():
            kind, *numbers = line.split()
            if kind == "given":
                queue_id, offset = map(int, numbers)
                self.given.append((queue_id, offset))
            else:
                self.shares.append([int(number) for number in numbers])

    @property
    def queues_taken_over(self) -> int:
        """Return how often the consumer got a queue that it did not have before."""
        pairs = zip([[], *self.shares], self.shares, strict=False)
        return sum(len(set(after) - set(before)) for before, after in pairs)


class Group:
    """All children, dead or alive, and the sent messages."""

    def __init__(self, driver: PlatformDriver, folder: Path) -> None:
        self._driver, self._folder = driver, folder
        self.children: list[Child] = []
        self.sent = 0
        """The number of messages in each queue."""

    @property
    def living(self) -> list[Child]:
        return [child for child in self.children if child.is_alive]

    async def add(self) -> None:
        child = Child(self._driver.name_servers, self._folder / f"child-{len(self.children)}")
        await child.start()
        self.children.append(child)

    async def add_amid(self) -> None:
        """Add a consumer while the others are working."""
        await self.add()
        while not self.children[-1].shares:
            before = self.sent
            await self.send(TRICKLE)
            await eventually(lambda before=before: self.is_amid(before))

    async def send(self, each: int) -> None:
        for queue_id in range(QUEUES):
            await self._driver.send(TOPIC, [f"{number}" for number in range(each)], queue_id)
        self.sent += each

    def look(self) -> None:
        for child in self.children:
            child.look()

    def everything_given(self) -> Iterator[tuple[int, int]]:
        return chain.from_iterable(child.given for child in self.children)

    @property
    def repeats(self) -> int:
        given = list(self.everything_given())
        return len(given) - len(set(given))

    def has_seen_everything(self) -> bool:
        self.look()
        return len(set(self.everything_given())) == QUEUES * self.sent

    def is_settled(self) -> bool:
        """Return whether every queue has one reader and no message is left."""
        self.look()
        shares = [child.shares[-1] if child.shares else [] for child in self.living]
        return all(shares) and sorted(chain(*shares)) == list(range(QUEUES)) and self.has_seen_everything()

    def is_amid(self, before: int) -> bool:
        """Return whether each queue has delivered a message sent after `before`; all repeats have been delivered by
        then."""
        self.look()
        return len({queue_id for queue_id, offset in self.everything_given() if offset >= before}) == QUEUES

    async def committed(self) -> list[int]:
        return [await self._driver.committed_offset(GROUP, TOPIC, queue_id) or 0 for queue_id in range(QUEUES)]


async def some_kill(group: Group) -> None:
    await group.living[0].end(signal.SIGKILL)
    await group.add_amid()


async def some_leave(group: Group) -> None:
    await group.living[0].end(signal.SIGTERM)


async def some_join(group: Group) -> None:
    await group.add_amid()


@pytest.mark.timeout(900)
async def test_a_rebalance_loses_no_message_and_repeats_only_uncommitted_ones(tmp_path, scale):
    events = [some_kill, some_leave, some_join] * (1 if scale == "smoke" else 3)
    each = (10_000 if scale == "smoke" else 100_000) // QUEUES // len(events)
    async with running_platform_driver(tmp_path / "platform") as driver, AsyncExitStack() as stack:
        await driver.create_topic(TOPIC, QUEUES)
        group = Group(driver, tmp_path)
        for _ in range(3):
            await group.add()
        stack.push_async_callback(ended, group)
        await eventually(group.is_settled, within_s=30)
        twice: dict[str, int] = {}
        for event in events:
            before, name = group.sent, event.__name__
            await group.send(each)
            await eventually(lambda before=before: group.is_amid(before), within_s=30)
            committed = await group.committed()
            group.look()  # in this order: a committed message has been delivered and recorded
            marks, repeats_before = [len(child.given) for child in group.children], group.repeats
            await event(group)
            await eventually(group.is_settled, within_s=60)
            for child, mark in zip_longest(group.children, marks, fillvalue=0):
                early = [place for place in child.given[mark:] if place[1] < committed[place[0]]]
                assert not early, (
                    f"{name}: {len(early)} committed messages were delivered again, the first is {min(early)}"
                )
            twice[name] = twice.get(name, 0) + group.repeats - repeats_before
        for queue_id in range(QUEUES):
            await driver.wait_for_commit(group.sent, GROUP, TOPIC, queue_id)
        group.look()
        given = list(group.everything_given())
        assert set(given) == {(queue_id, offset) for queue_id in range(QUEUES) for offset in range(group.sent)}
        moves = sum(child.queues_taken_over for child in group.children) - QUEUES
        print(f"{len(set(given))} messages, {moves} queues moved, {group.repeats} came twice {twice}, none lost")
        assert moves > 0
        assert group.repeats <= GIVEN_AND_NOT_COMMITTED * moves


async def ended(group: Group) -> None:
    for child in group.children:
        await child.end(signal.SIGKILL)
