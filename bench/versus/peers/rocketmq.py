"""Apache RocketMQ 5.5: its name server and one master broker, with the file sizes that it has by default.

The broker's heap is 1 GiB. Its start script gives it 8 GiB and touches them all beforehand, which no machine of the
size used here has to spare; the other JVM flags are those of the script.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from bench.versus.peers.peer import Peer
from tests.interop import official
from tests.interop.platforms import apache

VERSION = "5.5.0"
HEAP_MB = 1024
JVM_FLAGS = (
    *("-server", "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m", "-XX:G1ReservePercent=25"),
    *("-XX:InitiatingHeapOccupancyPercent=30", "-XX:SoftRefLRUPolicyMSPerMB=0", "-XX:-OmitStackTraceInFastThrow"),
    "-Djava.net.preferIPv4Stack=true",
)
DEFAULT_SIZES = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 300_000 * 20,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
}
"""RocketMQ's defaults, which the tests reduce."""


class RocketMQ(Peer):
    name = "RocketMQ"
    # The JVM of the name server is not counted, although Sparrow's process has a name server too.
    measured_program = "BrokerStartup"

    @property
    def description(self) -> str:
        return (
            f"Apache RocketMQ {VERSION}, {HEAP_MB} MiB heap, G1, RocketMQ's default file sizes, "
            f"flushDiskType {self._flush_type}; the name server's process is not measured"
        )

    @classmethod
    def is_installed(cls) -> bool:
        return any((official.BUILD / VERSION).glob("jars-*"))

    @property
    def _flush_type(self) -> str:
        return {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}[self.flush]

    def _launch(self, folder: Path, running: ExitStack) -> None:
        settings = DEFAULT_SIZES | {"flushDiskType": self._flush_type}
        kit = official.kit(VERSION)
        started = running.enter_context(apache(kit, folder, heap_mb=HEAP_MB, jvm_flags=JVM_FLAGS, **settings))
        self.address = started.name_server
