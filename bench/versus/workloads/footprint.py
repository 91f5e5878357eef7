"""Start-up time and anonymous memory of a server: idle, and after two million messages in batches."""

from __future__ import annotations

import time

from bench.versus.java_load import JavaLoad
from bench.versus.peers.rocketmq import RocketMQ
from bench.versus.peers.sparrow import Sparrow
from bench.versus.rounds import Figures
from bench.versus.run import Run
from bench.versus.workload import MEMORY_IDLE, MEMORY_LOADED, START
from bench.versus.workloads.batch_senders import fill

IDLE_S = 3.0
"""A started server finishes its own start before it counts as idle."""


def footprint(run: Run, load: JavaLoad, kind: type[Sparrow] | type[RocketMQ]) -> Figures:
    with run.started(kind()) as (server,):
        time.sleep(0 if run.scale.is_smoke else IDLE_S)
        idle = server.memory_mb
        fill(load, server, "footprint", run.scale.messages * 5)
        load.disconnect(server.address)
        return {START: server.start_s, MEMORY_IDLE: idle, MEMORY_LOADED: server.memory_mb}
