"""Access tokens of a log store: the `Tokens` of the store interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType

from sparrow.model.access.token import Token, validate_token_name
from sparrow.model.errors import Busy
from sparrow.store.log.state.state_store import StateStore
from sparrow.store.log.state.updates import TokenUpdate


class LogTokens:
    """Reads from the state tables; writes through the log."""

    def __init__(self, state: StateStore, wait_durable: Callable[[int], Awaitable[None]]) -> None:
        self._state, self._wait_durable = state, wait_durable

    async def all(self) -> Mapping[str, Token]:
        return dict(self._state.tables.tokens)

    def all_nowait(self) -> Mapping[str, Token]:
        """Return a read-only view that shows every change at once."""
        return MappingProxyType(self._state.tables.tokens)

    def id_nowait(self, name: str) -> int:
        """Return the number of a token; 0 if there is none."""
        token = self._state.tables.tokens.get(name)
        return 0 if token is None else token.id

    async def put(self, token: Token, *, before: Token | None = None, replaces_secret: bool = False) -> None:
        """Append the token. The log has one writer, so nobody else has issued the name."""
        validate_token_name(token.name)
        if before is not None and self._state.tables.tokens.get(token.name) != before:
            raise Busy(f"token {token.name!r} was changed at the same time: look at it before you change it again")
        await self._wait_durable(self._state.append([TokenUpdate(token)]))

    async def senders(self, physical_offsets: Sequence[int]) -> Mapping[int, int]:
        """Return nothing: records do not contain the token of their sender."""
        return {}
