"""Who may do what: bearer tokens for programs, sessions with a cookie for browsers, and checks of the origin.

1. One dependency of the whole API authorizes every request; a route names its role with `@needs`, or has that of its
   method: a viewer may read, an operator may change.
2. A request that a browser made for another site is refused, with and without log-in: a page of that site must not
   steer a console that listens on localhost. So the host must be a known one (no DNS rebinding), an `Origin` must be
   the console's, and a change within a session needs the session's CSRF token.
3. Sessions are in memory and bounded: a restart logs everyone out.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import IntEnum
from ipaddress import ip_address
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import msgspec
from fastapi import Depends, Request, Response

from sparrow.console.masks import NO_MASKS, set_masks
from sparrow.model.errors import NotPermitted, SettingsError, SparrowError
from sparrow.settings import ConsoleSettings, ConsoleToken

SESSION_COOKIE = "sparrow_session"
CSRF_HEADER = "X-CSRF-Token"
CSRF_FIELD = "csrf_token"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_ROLE_ATTRIBUTE = "__sparrow_role__"

F = TypeVar("F", bound=Callable[..., object])


class Role(IntEnum):
    """What a token may do; each role includes the ones before it."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        """The name in settings and answers."""
        return self.name.lower()


class Identity(msgspec.Struct, frozen=True):
    """Who makes a request."""

    name: str
    role: Role
    csrf_token: str | None = None
    """Of the session; None without one."""


ANONYMOUS = Identity("anonymous", Role.ADMIN)
"""Everyone, while `auth` is off."""


class NotAuthenticated(SparrowError):
    """The request has no valid token."""


class CrossSiteRequest(NotPermitted):
    """A browser made the request for a page of another site, or without the token of its session."""


def needs(role: Role) -> Callable[[F], F]:
    """Set the role that a route needs, where it is not that of its method."""

    def mark(endpoint: F) -> F:
        setattr(endpoint, _ROLE_ATTRIBUTE, role)
        return endpoint

    return mark


class _Session(msgspec.Struct):
    token_name: str
    csrf_token: str
    expires_s: float


class Gatekeeper:
    """Authenticates requests by the tokens of the settings, and keeps the sessions of browsers."""

    def __init__(self, settings: ConsoleSettings, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._monotonic = settings, monotonic
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._hosts = frozenset(host.lower() for host in settings.hosts)

    @property
    def is_on(self) -> bool:
        """Whether requests need a token."""
        return self._settings.auth

    # -- requests -----------------------------------------------------------------------------------------------------

    def identify(self, request: Request, *, is_change: bool) -> Identity:
        """Return who makes a request; raise `NotAuthenticated`, or `CrossSiteRequest` for another site's change."""
        self.check_host(request)
        if not self.is_on:
            if is_change:
                self._check_origin(request)
            return ANONYMOUS
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._identity_of_secret(secret.strip())
        session = self._session(request)
        if session is None:
            raise NotAuthenticated("a token is needed: send `Authorization: Bearer <secret key>`, or log in")
        token = self._settings.tokens[session.token_name]
        if is_change:
            self._check_origin(request)
            if not _equal(request.headers.get(CSRF_HEADER, ""), session.csrf_token):
                raise CrossSiteRequest("the request", f"it lacks the header {CSRF_HEADER} of the session")
        return Identity(session.token_name, Role[token.role.upper()], session.csrf_token)

    def check_host(self, request: Request) -> None:
        """Refuse a host name that is not the console's: a page of another site may have pointed its name at us."""
        host = (urlsplit(f"//{request.headers.get('Host', '')}").hostname or "").lower()
        if host in self._hosts or host in ("localhost", self._settings.host.lower(), ""):
            return
        try:
            ip_address(host)  # an address cannot be rebound
        except ValueError:
            raise CrossSiteRequest(
                f"the host name {host!r}", "add it to console.hosts if it is the console's"
            ) from None

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("Host", "").lower():
            raise CrossSiteRequest(f"a request of the site {origin!r}", "only pages of the console may make it")
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise CrossSiteRequest("a request of another site", "only pages of the console may make it")

    # -- sessions -----------------------------------------------------------------------------------------------------

    def log_in(self, request: Request, response: Response, secret: str) -> Identity:
        """Start a session for the owner of a secret, and set its cookie."""
        self.check_host(request)
        self._check_origin(request)
        identity = self._identity_of_secret(secret)
        key, csrf_token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        lifetime_s = self._settings.session_hours * 3600
        self._sessions[key] = _Session(identity.name, csrf_token, self._monotonic() + lifetime_s)
        while len(self._sessions) > self._settings.sessions_max:
            self._sessions.popitem(last=False)
        response.set_cookie(
            SESSION_COOKIE,
            key,
            max_age=int(lifetime_s),
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
            path="/",
        )
        return Identity(identity.name, identity.role, csrf_token)

    def log_out(self, request: Request, response: Response) -> None:
        """End the session of a request."""
        self._sessions.pop(request.cookies.get(SESSION_COOKIE, ""), None)
        response.delete_cookie(SESSION_COOKIE, path="/")

    def _session(self, request: Request) -> _Session | None:
        key = request.cookies.get(SESSION_COOKIE, "")
        session = self._sessions.get(key)
        if session is None or session.token_name not in self._settings.tokens:
            return None
        if session.expires_s <= self._monotonic():
            del self._sessions[key]
            return None
        return session

    def _identity_of_secret(self, secret: str) -> Identity:
        found: tuple[str, ConsoleToken] | None = None
        for name, token in self._settings.tokens.items():  # all of them: the time must not tell which one matches
            if _equal(secret, token.secret_key.get_secret_value()):
                found = name, token
        if found is None:
            raise NotAuthenticated("the token is not valid: check the secret key, or ask an administrator for one")
        return Identity(found[0], Role[found[1].role.upper()])


def _equal(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), known.encode(errors="replace"))


async def authorize(request: Request) -> Identity:
    """Identify who makes a request, and refuse it if the role does not suffice. The dependency of the whole API."""
    gatekeeper: Gatekeeper = request.app.state.console.gatekeeper
    is_safe = request.method in _SAFE_METHODS
    role = getattr(request.scope.get("endpoint"), _ROLE_ATTRIBUTE, Role.VIEWER if is_safe else Role.OPERATOR)
    identity = gatekeeper.identify(request, is_change=not is_safe or role > Role.VIEWER)
    if identity.role < role:
        raise NotPermitted(
            f"{request.method} {request.url.path}",
            f"it needs the role {role.label}, and {identity.name!r} has the role {identity.role.label}",
        )
    request.state.identity = identity
    set_masks(NO_MASKS if identity.role is Role.ADMIN else request.app.state.console.masks)
    return identity


IdentityDependency = Annotated[Identity, Depends(authorize)]


def check_listening(settings: ConsoleSettings, hosts: Iterable[str] = ("127.0.0.1", "::1", "localhost")) -> None:
    """Refuse to listen beyond this machine without log-in, unless the settings allow it."""
    if settings.auth and not settings.tokens:
        raise SettingsError(
            "console.tokens",
            {},
            "the settings",
            "at least one token, because console.auth is on: "
            '[console.tokens.NAME] with role = "admin" and secret_key = "…"',
        )
    if settings.host not in hosts and not settings.auth and not settings.allow_without_auth:
        raise SettingsError(
            "console.host",
            settings.host,
            "the settings",
            "127.0.0.1, or set console.auth = true and console.tokens, because everyone who reaches the address could "
            "change everything",
        )
