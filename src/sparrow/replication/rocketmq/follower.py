"""A follower of a RocketMQ master: its store, the copy of log and metadata, and its promotion."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from sparrow.log_intervals import LogIntervals
from sparrow.model.access.token import Credentials
from sparrow.model.errors import Busy, Refused, SparrowError
from sparrow.net.address import Address
from sparrow.replication.rocketmq import findings
from sparrow.replication.rocketmq.findings import MigrationFinding
from sparrow.replication.rocketmq.follower_state import FollowerState, begin_following
from sparrow.replication.rocketmq.log_copy import LogCopy
from sparrow.replication.rocketmq.master_client import RocketMQMasterClient
from sparrow.replication.rocketmq.metadata import save_metadata
from sparrow.replication.rocketmq.promotion import PLAN, find_in_flight, run_promotion
from sparrow.settings import MIB, LogSettings
from sparrow.store.log import LogStore
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.log.recovery.checkpoint import StoreLayout
from sparrow.wire.bodies.codec import Body

log = logging.getLogger(__name__)

METADATA_INTERVAL_S = 10.0
"""As often as 4.9's slaves copy it."""
BEHIND_BYTES_MAX = 256 * MIB
"""A promotion waits until less than this is missing: sends are off while the rest is copied."""


class FollowerStatus(Body, frozen=True):
    """How far a follower is, and how its promotion goes."""

    master: str
    broker_name: str
    cluster: str
    first: int
    end: int
    master_end: int
    bytes_per_s: float
    restarts: int
    findings: list[MigrationFinding]
    plan: list[str]
    steps: list[str]
    """The steps of the promotion that were begun."""
    error: str | None = None
    """Why nothing is copied at the moment."""
    promotion_error: str | None = None

    @property
    def bytes_behind(self) -> int:
        """How many bytes the master had more, when it was last asked."""
        return max(0, self.master_end - self.end)


class RocketMQFollower:
    """Follows a master from `start` until `stop`, or until it is promoted."""

    def __init__(
        self,
        path: Path,
        log_settings: LogSettings,
        master: Address,
        *,
        ha_address: Address | None = None,
        credentials: Credentials | None = None,
        name_servers: str = "",
    ) -> None:
        """Prepare to follow. `ha_address`: the HA port, if it is not where the master says."""
        self._path, self._log_settings, self._ha_address = path, log_settings, ha_address
        self._name_servers = name_servers
        self.master = RocketMQMasterClient(master, credentials)
        self.is_promoted = asyncio.Event()
        """Set when the log is complete and the master fenced: close the follower, and start the broker."""
        self._steps: list[str] = []
        self._promotion: asyncio.Task[None] | None = None
        self._promotion_error: str | None = None
        self._failures = LogIntervals()
        self._saving: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Check the master, open the store, and start to copy. Raises `Refused` if it cannot be followed."""
        settings = await self.master.configuration()
        layout = files.load(self._path / files.LAYOUT_FILE, StoreLayout)
        self._configuration = findings.check_configuration(
            settings, segment_bytes=layout.segment_bytes if layout is not None else None
        )
        if obstacles := [finding.text for finding in self._configuration if finding.kind == "blocks"]:
            raise Refused(f"{self.master.address} cannot be followed: {'; '.join(obstacles)}")
        self.state = begin_following(
            self._path,
            FollowerState(
                master=str(self.master.address),
                broker_name=settings["brokerName"],
                cluster=settings["brokerClusterName"],
                name_servers=self._name_servers or settings.get("namesrvAddr", ""),
            ),
        )
        if self.state.master_settings:
            log.warning("a promotion was interrupted: the master still refuses sends. Promote again, or restore it")
        self._log_settings = self._log_settings.model_copy(
            update={"segment_bytes": int(settings["mappedFileSizeCommitLog"]), "visible_after": "written"}
        )
        ha_address = self._ha_address or Address(self.master.address.host, int(settings["haListenPort"]))
        self.store = await asyncio.to_thread(LogStore, self._path, self._log_settings, follows=True)
        self.copy = LogCopy(self.store, self.master, ha_address)
        self.copy.start()
        self._metadata_task = asyncio.create_task(self._keep_copying_metadata())

    async def stop(self) -> None:
        """Stop to copy, and close the store. A promotion in progress is undone."""
        if self._promotion is not None:
            self._promotion.cancel()
            await asyncio.gather(self._promotion, return_exceptions=True)
        await self._end_metadata()
        await self.copy.stop()
        await self.store.close()
        self.master.close()

    async def _keep_copying_metadata(self) -> None:
        while True:
            try:
                metadata = await self.master.metadata()
                self._saving = asyncio.ensure_future(asyncio.to_thread(save_metadata, self._path, metadata))
                await asyncio.shield(self._saving)
                if self._failures.end("metadata"):
                    log.info("the metadata of %(master)s is copied again", {"master": self.master.address})
            except (SparrowError, OSError) as error:
                if self._failures.is_due("metadata", type(error)):
                    log.warning(
                        "the metadata of %(master)s cannot be copied: %(error)s",
                        {"master": self.master.address, "error": error},
                    )
            await asyncio.sleep(METADATA_INTERVAL_S)

    async def _end_metadata(self) -> None:
        """Stop to copy the metadata; nothing is written any more when this returns."""
        self._metadata_task.cancel()
        await asyncio.gather(self._metadata_task, return_exceptions=True)
        if self._saving is not None:
            await asyncio.wait([self._saving])

    # -- promotion ----------------------------------------------------------------------------------------------------

    def status(self, found: list[MigrationFinding] | None = None) -> FollowerStatus:
        """Return how far the copy is. `found`: findings, if they were just looked for."""
        return FollowerStatus(
            master=self.state.master,
            broker_name=self.state.broker_name,
            cluster=self.state.cluster,
            first=self.store.first,
            end=self.copy.end,
            master_end=self.copy.position.end,
            bytes_per_s=self.copy.bytes_per_s,
            restarts=self.copy.restarts,
            error=self.copy.error,
            findings=found or [],
            plan=list(PLAN),
            steps=list(self._steps),
            promotion_error=self._promotion_error,
        )

    async def check(self) -> FollowerStatus:
        """Look for everything that speaks against a promotion, or does not come along."""
        metadata = await self.master.metadata()
        await self.copy.update_position()
        popped = await find_in_flight(self.store, self.state.cluster, metadata)
        found = [*self._configuration, *findings.check_metadata(metadata), *findings.check_popped(popped)]
        if self.copy.error is not None:
            found.append(MigrationFinding("blocks", f"nothing is copied at the moment: {self.copy.error}"))
        if self.copy.bytes_behind > BEHIND_BYTES_MAX:
            behind = f"{self.copy.bytes_behind / MIB:.0f} MiB behind its master: wait until it is less than 256 MiB"
            found.append(MigrationFinding("blocks", f"the follower is {behind}"))
        return self.status(found)

    async def promote(self, *, offset_wait_s: float) -> FollowerStatus:
        """Start the promotion, and return the findings. Raises `Refused` if one of them blocks it."""
        status = await self.check()
        if obstacles := [finding.text for finding in status.findings if finding.kind == "blocks"]:
            raise Refused(f"the follower cannot be promoted: {'; '.join(obstacles)}")
        await self._end_metadata()
        # No await from here on, so that one of two concurrent requests finds the promotion of the other.
        if self.is_promoted.is_set() or (self._promotion is not None and not self._promotion.done()):
            raise Busy("the promotion is in progress already")
        self._steps, self._promotion_error = [], None
        self._promotion = asyncio.create_task(self._promote(offset_wait_s))
        return status

    async def _promote(self, offset_wait_s: float) -> None:
        try:
            await run_promotion(
                self._path,
                self.store,
                self.copy,
                self.master,
                offset_wait_s=offset_wait_s,
                on_step=self._steps.append,
            )
        except (SparrowError, OSError) as error:
            log.error("the promotion failed, and the master continues: %(error)s", {"error": error})
            self._promotion_error = str(error)
            self.copy.start()
            self._metadata_task = asyncio.create_task(self._keep_copying_metadata())
            return
        self.is_promoted.set()
