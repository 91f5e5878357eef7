"""The port of a follower: until it is promoted it answers operators only, about its progress and its promotion."""

from __future__ import annotations

from sparrow.broker.access.authorizer import RequestAuthorizer
from sparrow.net.access.audit_log import AuditLog
from sparrow.net.access.guarded_dispatcher import GuardedRequestDispatcher
from sparrow.net.dispatcher import (
    HandlerResponse,
    RequestContext,
    RequestDispatcher,
    RequestHandler,
)
from sparrow.net.listener import Listener
from sparrow.replication.rocketmq.follower import RocketMQFollower
from sparrow.settings import BrokerSettings
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import EmptyHeader, PromoteFollower


async def _status(_: EmptyHeader, follower: RocketMQFollower, __: RequestContext) -> HandlerResponse:
    return HandlerResponse.of(follower.status())


async def _promote(request: PromoteFollower, follower: RocketMQFollower, _: RequestContext) -> HandlerResponse:
    if request.is_dry_run:
        return HandlerResponse.of(await follower.check())
    return HandlerResponse.of(await follower.promote(offset_wait_s=max(0, request.offset_wait_ms) / 1000))


HANDLERS: dict[int, RequestHandler[RocketMQFollower]] = {
    RequestCode.GET_FOLLOWER_STATUS: _status,
    RequestCode.PROMOTE_FOLLOWER: _promote,
}


class FollowerServer:
    """A follower that listens where the broker will. With `auth`, it accepts admin tokens only."""

    def __init__(self, follower: RocketMQFollower, settings: BrokerSettings) -> None:
        self._follower, self._settings = follower, settings
        self._dispatcher: RequestDispatcher[RocketMQFollower]
        if settings.auth:
            requires_challenge = settings.auth_requires_challenge
            guard = RequestAuthorizer({}, settings.admin_tokens, requires_challenge=requires_challenge)
            audit = AuditLog({RequestCode.PROMOTE_FOLLOWER})
            self._dispatcher = GuardedRequestDispatcher(follower, HANDLERS, check=guard.check, audit=audit)
        else:
            self._dispatcher = RequestDispatcher(follower, HANDLERS)
        self._listener = Listener(self._dispatcher, settings.net, counts_tokens=settings.auth)
        self.port = 0

    async def start(self) -> None:
        """Bind the port, start to follow, and answer requests."""
        self.port = self._listener.bind(self._settings.host, self._settings.port)
        try:
            await self._follower.start()
        except BaseException:
            self._listener.stop_accepting()
            raise
        await self._listener.start()

    async def stop(self) -> None:
        """Stop to answer and to follow."""
        self._listener.stop_accepting()
        await self._dispatcher.stop(0.5)
        await self._listener.stop()
        await self._follower.stop()
