"""Name server and broker under test: Apache's, or Sparrow's. Both run as processes on the loopback interface."""

import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.interop.official import Kit
from tests.support.wait import wait_until

from sparrow.client import Admin

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 15
LOOPBACK = "127.0.0.1"
_LOOK_S = 0.02
# Default settings, except for a short timeout of unfinished transactions.
_SPARROW_SETTINGS = {
    "SPARROW_BROKER__TRANSACTION_TIMEOUT_MS": "1000",
    "SPARROW_BROKER__TRANSACTION_CHECK_INTERVAL_MS": "2000",
}


class Platform(NamedTuple):
    kind: str
    name_server: str
    broker: str
    broker_name: str
    cluster: str = "DefaultCluster"

    @property
    def is_apache_4(self) -> bool:
        """Whether newer clients send requests that this broker does not know."""
        return self.kind.startswith("apache-4.")


@contextmanager
def apache(kit: Kit, folder: Path) -> Iterator[Platform]:
    """Run Apache's name server and one master broker, with small files, all below `folder`."""
    with ExitStack() as stack:
        naming_port = free_port()
        naming_settings = _properties(
            folder / "namesrv.conf",
            listenPort=naming_port,
            kvConfigPath=folder / "kv.json",
            configStorePath=folder / "namesrv.properties",
        )
        naming = kit.command(
            "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(naming_settings), user_home=folder, heap_mb=256
        )
        log = stack.enter_context(_running(naming, folder / "namesrv.out", stop_timeout_s=0))
        log.wait_for("boot success")

        # The broker also listens on the two adjacent ports: for "VIP" clients and for replicas.
        port = free_port(-2, 0, 1)
        settings = _properties(
            folder / "broker.conf",
            brokerClusterName="DefaultCluster",
            brokerName="broker-a",
            brokerId=0,
            brokerIP1=LOOPBACK,
            brokerIP2=LOOPBACK,
            listenPort=port,
            haListenPort=port + 1,
            namesrvAddr=f"{LOOPBACK}:{naming_port}",
            autoCreateTopicEnable="true",
            storePathRootDir=folder / "store",
            storePathCommitLog=folder / "store" / "commitlog",
            mappedFileSizeCommitLog=16 * 1024 * 1024,
            mappedFileSizeConsumeQueue=20 * 10_000,
            maxHashSlotNum=50_000,
            maxIndexNum=200_000,
            diskMaxUsedSpaceRatio=95,
            # On a busy machine a send may wait; a refusal after 200 ms would only cause random test failures.
            waitTimeMillsInSendQueue=10_000,
            osPageCacheBusyTimeOutMills=10_000,
            # The shortest values at which 5.x does not check finished transactions: it may need three seconds to record
            # an end.
            transactionTimeOut=5_000,
            transactionCheckInterval=5_000,
            enablePropertyFilter="true",  # SQL filters, which Sparrow always supports
        )
        broker = kit.command(
            "org.apache.rocketmq.broker.BrokerStartup", "-c", str(settings), user_home=folder, heap_mb=512
        )
        log = stack.enter_context(_running(broker, folder / "broker.out", stop_timeout_s=0))
        log.wait_for("boot success")
        running = Platform(f"apache-{kit.version}", f"{LOOPBACK}:{naming_port}", f"{LOOPBACK}:{port}", "broker-a")
        # On a busy machine the broker reports its start seconds before the name server knows it.
        with Admin(running.name_server) as admin:
            wait_until(lambda: running.cluster in admin.clusters(), within_s=START_TIMEOUT_S)
        yield running


@contextmanager
def sparrow(folder: Path) -> Iterator[Platform]:
    """Run Sparrow as a user starts it."""
    ports = ["--name-server-port", "0", "--port", "0"]
    command = [sys.executable, "-u", "-m", "sparrow", "up", "--data", str(folder / "data"), *ports]
    with _running(command, folder / "sparrow.out", stop_timeout_s=STOP_TIMEOUT_S, settings=_SPARROW_SETTINGS) as log:
        said = log.wait_for("ready")
        naming = re.search(r"name server (\S+:\d+)", said)
        broker = re.search(r"broker (\S+) (\S+:\d+)", said)
        assert naming, said
        assert broker, said
        yield Platform("sparrow", naming[1], broker[2], broker[1])
    # A segment of the log takes a gigabyte on disk, and pytest keeps the folders of its last runs.
    shutil.rmtree(folder / "data", ignore_errors=True)


def free_port(*deltas: int) -> int:
    """Return a free port; the ports at the given distances from it are free too."""
    for _ in range(100):
        port = random.randrange(20_000, 32_000)  # below the ephemeral ports
        try:
            for delta in deltas or (0,):
                with socket.socket() as probe:
                    probe.bind((LOOPBACK, port + delta))
        except OSError:
            continue
        return port
    raise AssertionError("no free port")


def _properties(path: Path, **settings: object) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


class _Log(NamedTuple):
    process: subprocess.Popen[bytes]
    path: Path

    def wait_for(self, words: str) -> str:
        """Wait until the output contains these words; return the output."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while words not in (said := self.path.read_text(errors="replace")):
            assert self.process.poll() is None, f"the process ended with {self.process.returncode}:\n{said}"
            assert time.monotonic() < deadline, f"the output never contained {words!r}:\n{said}"
            time.sleep(_LOOK_S)
        return said


@contextmanager
def _running(
    command: Sequence[str], output: Path, *, stop_timeout_s: float, settings: Mapping[str, str] | None = None
) -> Iterator[_Log]:
    """Run a process; on exit terminate it, or kill it after the timeout: Apache's needs ten seconds to stop."""
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command,
            cwd=output.parent,
            env=os.environ | (settings or {}),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _Log(process, output)
    finally:
        process.terminate()
        try:
            process.wait(stop_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
