"""Topic to Spark to topic across fail-overs of a replica set: each input message appears in the output exactly once.

Leaders are killed while a query stages and publishes its batches. Stages are files of one broker, so a batch whose
leader dies is repeated at the next one; the ledger, which is in the log, tells whether it was published before.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import msgspec
import pytest
from tests.fault.spark_driver import Orders, Plan
from tests.fault.spark_driver_process import Checkpoint, Driver
from tests.fault.test_spark_exactly_once import (
    QUEUES,
    SparkSetup,
    assert_exactly_once,
    ends,
    feed,
    wait_random_moment,
)
from tests.support.etcd import etcd_cluster
from tests.support.replica_processes import ReplicaSetProcesses, replica_set_processes

from sparrow.client.aio import ClientSession

SET = "set-spark"
STEADY = {"replication__lease_s": 10, "replication__lag_ms": 5_000}
"""A busy machine must not depose leaders. One that is killed is noticed at once: its port refuses connections."""


class FailoverSetup(SparkSetup):
    """Queries on a replica set. One may fail while nobody leads; the next run of the driver repeats its batch."""

    async def check_driver(self) -> None:
        if not self.driver.is_running:
            self.failed += 1
            await self.start_again()

    async def ledger(self, plan: Plan) -> int:
        """Return that nothing is known: this test counts no refused batches, and nobody may lead now."""
        return -1


async def kill_leader(setup: FailoverSetup, processes: ReplicaSetProcesses) -> None:
    """Kill the leader at a random moment of a batch, and wait until two more batches are committed."""
    await wait_random_moment(setup, setup.plans)
    leader = await processes.leader()
    await leader.end()
    await processes.leader(but=leader)
    leader.start()
    targets = {plan.name: Checkpoint(plan).committed + 2 for plan in setup.plans}
    await setup.until(lambda: all(Checkpoint(plan).committed >= targets[plan.name] for plan in setup.plans))
    await processes.wait_in_sync()


@pytest.mark.thorough
@pytest.mark.timeout(3_600)
async def test_each_message_is_written_exactly_once_across_fail_overs(tmp_path: Path, scale: str) -> None:
    seed = int(os.environ.get("SPARROW_SEED") or random.SystemRandom().getrandbits(32))
    print(f"SPARROW_SEED={seed}")
    rng = random.Random(seed)
    plans = [
        Plan(name=name, broker=SET, source="in", target=name, checkpoint=f"{tmp_path}/{name}", is_shuffled=is_shuffled)
        for name, is_shuffled in (("row_by_row", False), ("shuffled", True))
    ]
    orders = tmp_path / "orders.json"
    driver = Driver(tmp_path, orders)
    with etcd_cluster() as etcd:
        async with replica_set_processes(etcd, tmp_path, SET, **STEADY) as processes:
            names = processes.name_servers
            orders.write_bytes(msgspec.json.encode(Orders(names, plans)))
            await processes.create_topics(dict.fromkeys(("in", *(plan.target for plan in plans)), QUEUES))
            async with ClientSession(names) as session:
                setup = FailoverSetup(names, {}, plans, driver, session, rng)
                try:
                    async with asyncio.TaskGroup() as feeding:
                        feeding.create_task(feed(setup, "in", SET))
                        await driver.start()
                        for _ in range(2 if scale == "smoke" else 15):
                            await kill_leader(setup, processes)
                        setup.is_fed = False
                    wanted = await ends(setup, "in")
                    await setup.until(lambda: all(Checkpoint(plan).read_until() == wanted for plan in plans))
                    await driver.stop()
                    rows = {plan.name: await assert_exactly_once(setup, plan) for plan in plans}
                finally:
                    await driver.stop()
    print(f"rows: {rows}; {driver.runs} runs, {setup.failed} of them failed while nobody led")
