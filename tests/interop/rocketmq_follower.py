"""`sparrow broker --follow-rocketmq` as a process, and `sparrow cluster promote`."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.interop.platforms import STOP_TIMEOUT_S, ProcessOutput, running_process
from tests.support.wait import wait_until

from sparrow.replication.rocketmq.follower_state import FollowerState, load_follower_state

PROMOTION_TIMEOUT_S = 180
_SETTINGS = {
    "SPARROW_BROKER__TRANSACTION_TIMEOUT_MS": "1000",
    "SPARROW_BROKER__TRANSACTION_CHECK_INTERVAL_MS": "1000",
    "SPARROW_BROKER__TRANSACTION_CHECKS_MAX": "1000",  # a busy machine needs a while to start the producer
}


class FollowerProcess(NamedTuple):
    address: str
    data: Path
    output: ProcessOutput

    @property
    def state(self) -> FollowerState:
        state = load_follower_state(self.data / "store")
        assert state is not None
        return state

    def promote(self, *words: str) -> str:
        """Run `sparrow cluster promote`, and return what it prints."""
        done = self._run_promote(*words)
        assert done.returncode == 0, done.stdout + done.stderr + self.output.path.read_text()
        return re.sub(r"\s+", " ", done.stdout)

    def plan_promotion(self) -> str:
        """Return the plan of a promotion, once there is one: the follower may still be connecting again."""
        wait_until(lambda: self._run_promote("--dry-run").returncode == 0, within_s=PROMOTION_TIMEOUT_S)
        return self.promote("--dry-run")

    def _run_promote(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sparrow", "cluster", "promote", "--broker", self.address, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=PROMOTION_TIMEOUT_S, check=False)

    @contextmanager
    def promoting(self, step: str) -> Iterator[None]:
        """Begin a promotion, and wait until it prints a step; consumers get a long time for their offsets."""
        command = [sys.executable, "-u", "-m", "sparrow", "cluster", "promote", "--broker", self.address]
        command += ["--yes", "--offset-wait-s", "600"]
        # The plan is printed first, then each step when it begins.
        with running_process(command, self.data.with_suffix(".promotion"), stop_timeout_s=5) as printed:
            wait_until(lambda: printed.path.read_text().count(step) == 2, within_s=60)
            yield


@contextmanager
def follower_process(master: str, data: Path, *words: str) -> Iterator[FollowerProcess]:
    """Follow a master until the context ends."""
    command = [sys.executable, "-u", "-m", "sparrow", "broker", "--follow-rocketmq", master]
    command += ["--port", "0", "--data", str(data), *words]
    output = data.with_suffix(".out")
    with running_process(command, output, stop_timeout_s=STOP_TIMEOUT_S, settings=_SETTINGS) as running:
        address = re.search(r"promote --broker (\S+)", running.wait_for("promote --broker"))
        assert address
        yield FollowerProcess(address[1], data, running)


def differing_bytes(data: Path, other: Path, end: int) -> list[str]:
    """Compare the commit logs of two store directories up to an offset; return the segments that differ."""
    different = []
    for path in sorted((data / "commitlog").iterdir()):
        base = int(path.name)
        if base >= end:
            break
        ours, theirs = path.read_bytes()[: end - base], (other / "commitlog" / path.name).read_bytes()[: end - base]
        if ours != theirs:
            different.append(path.name)
    return different
