"""Name server and broker under test: Apache's, or Sparrow's. Both run as processes on the loopback interface."""

import json
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

from tests.interop.official import QUICK_START_FLAGS, Kit
from tests.support.wait import wait_until

from sparrow.client import Admin
from sparrow.model.errors import Unavailable

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


class ProcessOutput(NamedTuple):
    process: subprocess.Popen[bytes]
    path: Path

    def wait_for(self, words: str, *, within_s: float = START_TIMEOUT_S) -> str:
        """Wait until the output contains these words; return the output."""
        deadline = time.monotonic() + within_s
        while words not in (said := self.path.read_text(errors="replace")):
            assert self.process.poll() is None, f"the process ended with {self.process.returncode}:\n{said}"
            assert time.monotonic() < deadline, f"the output never contained {words!r}:\n{said}"
            time.sleep(_LOOK_S)
        return said


@contextmanager
def apache_name_server(kit: Kit, folder: Path, **more_settings: object) -> Iterator[str]:
    """Run Apache's name server; yield its address."""
    port = free_port()
    settings = _properties(
        folder / "namesrv.conf",
        listenPort=port,
        kvConfigPath=folder / "kv.json",
        configStorePath=folder / "namesrv.properties",
        **more_settings,
    )
    command = kit.command(
        "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(settings), user_home=folder, heap_mb=256
    )
    with running_process(command, folder / "namesrv.out", stop_timeout_s=0) as log:
        log.wait_for("boot success")
        yield f"{LOOPBACK}:{port}"


@contextmanager
def apache(
    kit: Kit,
    folder: Path,
    *,
    heap_mb: int = 512,
    jvm_flags: Sequence[str] = QUICK_START_FLAGS,
    **broker_settings: object,
) -> Iterator[Platform]:
    """Run Apache's name server and one master broker, with small files, all below `folder`.

    `heap_mb` and `jvm_flags` are those of the broker, `broker_settings` change its settings below.
    """
    with ExitStack() as stack:
        name_server = stack.enter_context(apache_name_server(kit, folder))
        broker = apache_broker(kit, folder, name_server, heap_mb=heap_mb, jvm_flags=jvm_flags, **broker_settings)
        address, log = stack.enter_context(broker)
        log.wait_for("boot success")
        running = Platform(f"apache-{kit.version}", name_server, address, "broker-a")
        wait_for_master(running.name_server, running.cluster)
        yield running


def wait_for_master(name_server: str, cluster: str = "DefaultCluster") -> None:
    """Wait until the name server knows a master: on a busy machine, seconds after the broker has reported its start."""

    def is_known(admin: Admin) -> bool:
        try:
            found = admin.clusters().get(cluster)
        except Unavailable:
            return False
        return found is not None and any(0 in addresses for addresses in found.brokers.values())

    with Admin(name_server) as admin:
        wait_until(lambda: is_known(admin), within_s=START_TIMEOUT_S)


@contextmanager
def apache_broker(
    kit: Kit, folder: Path, name_server: str, *, heap_mb: int, jvm_flags: Sequence[str], **more_settings: object
) -> Iterator[tuple[str, ProcessOutput]]:
    """Launch one of Apache's brokers; yield its address, and its output, which says "boot success" after the start."""
    # The broker also listens on the two adjacent ports: for "VIP" clients and for replicas.
    port = free_port(-2, 0, 1)
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerIP1": LOOPBACK,
        "brokerIP2": LOOPBACK,
        "listenPort": port,
        "haListenPort": port + 1,
        "namesrvAddr": name_server,
        "autoCreateTopicEnable": "true",
        "storePathRootDir": folder / "store",
        "storePathCommitLog": folder / "store" / "commitlog",
        "mappedFileSizeCommitLog": 16 * 1024 * 1024,
        "mappedFileSizeConsumeQueue": 20 * 10_000,
        "maxHashSlotNum": 50_000,
        "maxIndexNum": 200_000,
        "diskMaxUsedSpaceRatio": 95,
        # On a busy machine a send may wait; a refusal after 200 ms would only cause random test failures.
        "waitTimeMillsInSendQueue": 10_000,
        "osPageCacheBusyTimeOutMills": 10_000,
        # The shortest values at which 5.x does not check finished transactions: it may need three seconds to record
        # an end.
        "transactionTimeOut": 5_000,
        "transactionCheckInterval": 5_000,
        "enablePropertyFilter": "true",  # SQL filters, which Sparrow always supports
        "recallMessageEnable": "true",  # recalls, which Sparrow always supports
    } | more_settings
    path = _properties(folder / "broker.conf", **settings)
    main = "org.apache.rocketmq.broker.BrokerStartup"
    broker = kit.command(main, "-c", str(path), user_home=folder, heap_mb=heap_mb, jvm_flags=jvm_flags)
    with running_process(broker, folder / "broker.out", stop_timeout_s=0) as log:
        yield f"{LOOPBACK}:{port}", log


@contextmanager
def sparrow(folder: Path, **settings: object) -> Iterator[Platform]:
    """Run Sparrow as a user starts it; `settings` are environment variables without `SPARROW_`.

    They are for this process only: a fixture that changed the environment would change the servers of other tests.
    """
    environment = _SPARROW_SETTINGS | {f"SPARROW_{name}": str(value) for name, value in settings.items()}
    ports = ["--name-server-port", "0", "--port", "0"]
    command = [sys.executable, "-u", "-m", "sparrow", "up", "--no-console", "--data", str(folder / "data"), *ports]
    with running_process(command, folder / "sparrow.out", stop_timeout_s=STOP_TIMEOUT_S, settings=environment) as log:
        said = log.wait_for("ready")
        naming = re.search(r"name server (\S+:\d+)", said)
        broker = re.search(r"broker (\S+) (\S+:\d+)", said)
        assert naming, said
        assert broker, said
        yield Platform("sparrow", naming[1], broker[2], broker[1])
    # A segment of the log takes a gigabyte on disk, and pytest keeps the folders of its last runs.
    shutil.rmtree(folder / "data", ignore_errors=True)


@contextmanager
def apache_proxy(kit: Kit, platform: Platform, folder: Path) -> Iterator[str]:
    """Run Apache's proxy in cluster mode in front of a platform; yield its gRPC address."""
    grpc_port, remoting_port = free_port(), free_port()
    settings = folder / "rmq-proxy.json"
    settings.write_text(
        json.dumps(
            {
                "rocketMQClusterName": platform.cluster,
                "proxyMode": "CLUSTER",
                "namesrvAddr": platform.name_server,
                "grpcServerPort": grpc_port,
                "remotingListenPort": remoting_port,
                "localServeAddr": LOOPBACK,
                # Lower case: the default name cannot be a topic on a SQL store.
                "heartbeatSyncerTopicName": "proxy_heartbeats",
                # The brokers check a transaction back with a producer group that the proxy has announced.
                "transactionHeartbeatPeriodSecond": 1,
                # Settings of topics and groups are cached; tests change them.
                "topicConfigCacheRefreshSeconds": 1,
                "subscriptionGroupConfigCacheRefreshSeconds": 1,
                "topicRouteServiceCacheRefreshSeconds": 1,
            }
        )
    )
    command = kit.command("org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(settings), user_home=folder, heap_mb=384)
    environment = {"RMQ_PROXY_HOME": str(kit.home)}
    with running_process(command, folder / "proxy.out", stop_timeout_s=0, settings=environment) as log:
        log.wait_for("startup successfully")
        yield f"{LOOPBACK}:{grpc_port}"


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


@contextmanager
def running_process(
    command: Sequence[str], output: Path, *, stop_timeout_s: float, settings: Mapping[str, str] | None = None
) -> Iterator[ProcessOutput]:
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
        yield ProcessOutput(process, output)
    finally:
        process.terminate()
        try:
            process.wait(stop_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
