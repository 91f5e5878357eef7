"""`sparrow cluster promote`: let a follower take the place of its RocketMQ master."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sparrow.cli.admin_client import AccessKeyOption, SecretKeyOption
from sparrow.cli.settings import DEFAULT_DATA_FOLDER, load_settings
from sparrow.model.access.token import Credentials
from sparrow.model.errors import ConnectionLost, Refused, RequestTimeout, SparrowError, Unavailable
from sparrow.model.tls import default_tls
from sparrow.net.access.peer_access import PeerAccess
from sparrow.net.address import Address
from sparrow.net.channel import Channel
from sparrow.replication.rocketmq.follower import FollowerStatus
from sparrow.replication.rocketmq.promotion import promote_without_master
from sparrow.wire import bodies
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import Header, PromoteFollower

_CHECK_TIMEOUT_MS = 120_000
_POLL_S = 0.2
_START_S = 120.0

console = Console()


def promote(
    broker: Annotated[str, typer.Option(help="Address of the follower.", metavar="HOST:PORT")] = "127.0.0.1:10911",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check, and print the plan.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before.")] = False,
    offset_wait_s: Annotated[
        float, typer.Option(help="Seconds in which consumers of the master commit what they have processed.", min=0)
    ] = 6.0,
    without_master: Annotated[
        bool,
        typer.Option("--without-master", help="The master is gone: promote the stopped follower in --data as it is."),
    ] = False,
    data: Annotated[Path, typer.Option(help="Data folder of that follower.")] = DEFAULT_DATA_FOLDER,
    access_key: AccessKeyOption = None,
    secret_key: SecretKeyOption = None,
) -> None:
    """Let the follower of a RocketMQ master take its place.

    The follower runs as [bold]sparrow broker --follow-rocketmq …[/bold]; see docs/migration.md.

    Example: [bold]sparrow cluster promote --broker sparrow-a:10911 --dry-run[/bold]
    """
    if without_master:
        _promote_without_master(data, is_confirmed=yes)
        return
    credentials = Credentials(access_key or "", secret_key or "") if access_key or secret_key else None
    operator = _Operator(Address.parse(broker), PeerAccess(default_tls(), credentials))
    status = asyncio.run(operator.check())
    _print_check(status)
    if any(finding.kind == "blocks" for finding in status.findings):
        raise Refused("the follower cannot be promoted now: see above")
    if dry_run:
        return
    if not yes and not typer.confirm("Promote it?"):
        raise typer.Exit(1)
    asyncio.run(operator.promote(offset_wait_s))
    console.print(f"[green]{broker} is broker 0 of {status.broker_name}.[/green] Stop the old master: {status.master}")


def _promote_without_master(data: Path, *, is_confirmed: bool) -> None:
    question = "Messages that the master acknowledged and had not sent to the follower are lost. Promote it?"
    if not is_confirmed and not typer.confirm(question):
        raise typer.Exit(1)
    state = promote_without_master(data / "store", load_settings().log)
    console.print(
        f"{state.broker_name} is promoted with its log up to {state.end:,}. Never start the old master again."
    )
    console.print(f"Start the broker: sparrow broker --data {data}")


def _print_check(status: FollowerStatus) -> None:
    console.print(f"follower of {status.broker_name} (cluster {status.cluster}) at {status.master}")
    console.print(f"copied to {status.end:,} of {status.master_end:,}: {status.bytes_behind:,} bytes behind")
    for finding in status.findings:
        style = "red" if finding.kind == "blocks" else "yellow"
        console.print(f"{finding.kind}: {finding.text}", style=style, highlight=False)
    console.print("plan:")
    for number, step in enumerate(status.plan, 1):
        console.print(f"  {number}. {step}", highlight=False)


class _Operator:
    """Requests of an operator to the follower."""

    def __init__(self, address: Address, access: PeerAccess) -> None:
        self._address, self._access = address, access

    async def check(self) -> FollowerStatus:
        """Ask for the findings."""
        channel = await self._access.connect(self._address)
        try:
            header = PromoteFollower(is_dry_run=True)
            return await self._ask(channel, RequestCode.PROMOTE_FOLLOWER, header, _CHECK_TIMEOUT_MS)
        finally:
            channel.close()

    async def promote(self, offset_wait_s: float) -> None:
        """Start the promotion, show its steps, and return when the broker serves."""
        channel = await self._access.connect(self._address)
        header = PromoteFollower(offset_wait_ms=int(offset_wait_s * 1000))
        await self._ask(channel, RequestCode.PROMOTE_FOLLOWER, header, _CHECK_TIMEOUT_MS)
        shown = 0
        try:
            while True:
                status = await self._ask(channel, RequestCode.GET_FOLLOWER_STATUS)
                for number, step in enumerate(status.steps[shown:], shown + 1):
                    console.print(f"  {number}. {step}", highlight=False)
                shown = len(status.steps)
                if status.promotion_error is not None:
                    raise Unavailable(f"the promotion failed, and the master continues: {status.promotion_error}")
                await asyncio.sleep(_POLL_S)
        except (ConnectionLost, RequestTimeout):
            pass  # the follower has stopped, and the broker starts on the same port
        finally:
            channel.close()
        for number, step in enumerate(status.plan[shown:], shown + 1):
            console.print(f"  {number}. {step}", highlight=False)
        await self._wait_for_broker()

    async def _ask(
        self, channel: Channel, code: RequestCode, header: Header | None = None, timeout_ms: int = 5_000
    ) -> FollowerStatus:
        response = await channel.request(code, header, timeout_ms=timeout_ms)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise Refused(f"{self._address} is no follower of a RocketMQ master, or was promoted already")
        if response.code != ResponseCode.SUCCESS:
            raise error_for_response(response.code, response.remark)
        return bodies.read(FollowerStatus, response.body)

    async def _wait_for_broker(self) -> None:
        try:
            async with asyncio.timeout(_START_S):
                while True:
                    if await self._is_serving():
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as cause:
            raise Unavailable(
                f"the broker at {self._address} does not answer: see the output of the follower, and start "
                "`sparrow broker` with the same --data"
            ) from cause

    async def _is_serving(self) -> bool:
        """Return whether a broker answers: it does not know the requests of a follower."""
        try:
            channel = await self._access.connect(self._address)
        except SparrowError:
            return False
        try:
            await self._ask(channel, RequestCode.GET_FOLLOWER_STATUS)
        except Refused:
            return True
        except SparrowError:
            return False
        finally:
            channel.close()
        return False
