"""One visit of a page: language, theme, the API as the visitor may use it, and the templates that draw the answer."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any
from urllib.parse import urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from sparrow.console.i18n import HTML_LANGUAGES, LANGUAGES, Translator, choose_language
from sparrow.console.pages.frame import charts, formats
from sparrow.console.pages.frame.api_client import API_PREFIX, ApiClient, ApiProblem, path_of
from sparrow.console.pages.frame.static_files import static_url
from sparrow.console.security import CSRF_FIELD, Gatekeeper

LANGUAGE_COOKIE, THEME_COOKIE, FLASH_COOKIE = "sparrow_language", "sparrow_theme", "sparrow_flash"
THEMES = ("auto", "dark", "light")
PREFERENCE_MAX_AGE_S = 365 * 86_400
FLASH_MAX_AGE_S = 60
FLASH_CHARS_MAX = 1200
"""A cookie holds 4 KiB; base64 and UTF-8 may make four bytes of a character."""

NAVIGATION: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("", (("overview", "/"),)),
    (
        "messaging",
        (
            ("topics", "/topics"),
            ("groups", "/groups"),
            ("messages", "/messages"),
            ("dead-letters", "/dead-letters"),
            ("delayed", "/delayed"),
            ("transactions", "/transactions"),
        ),
    ),
    ("applications", (("bus", "/bus"), ("pipelines", "/pipelines"))),
    (
        "platform",
        (("cluster", "/cluster"), ("tokens", "/tokens"), ("settings", "/settings"), ("audit", "/audit")),
    ),
)


@dataclass(frozen=True)
class Flash:
    """A sentence that the next page shows once, after a change."""

    kind: str
    title: str
    text: str = ""


class Visit:
    """A request for a page."""

    def __init__(self, request: Request, *, posted_token: str | None = None, is_checked: bool = True) -> None:
        """Start a visit; raise `NotAuthenticated` without a session, unless the page works without one.

        `posted_token` is the CSRF token that the form of a change carries; the API compares it.
        """
        self.request = request
        self.gatekeeper: Gatekeeper = request.app.state.console.gatekeeper
        identity = self.gatekeeper.identify(request, is_change=False) if is_checked else None
        self.csrf_token = identity.csrf_token if identity is not None else None
        self.user = identity.name if identity is not None and self.gatekeeper.is_on else None
        is_known = identity is not None or not self.gatekeeper.is_on
        self.clusters: tuple[str, ...] = tuple(request.app.state.console.clusters) if is_known else ()
        """The clusters that the visitor may switch to."""
        self._posted_token = posted_token
        self._root = str(request.scope.get("root_path", ""))
        self.cluster = request.query_params.get("cluster") or None
        self.language = choose_language(
            request.cookies.get(LANGUAGE_COOKIE), request.headers.get("accept-language", "")
        )
        self.t = Translator(self.language)
        theme = request.cookies.get(THEME_COOKIE)
        self.theme = theme if theme in THEMES else THEMES[0]
        self.is_fragment = "x-fragment" in request.headers
        self.is_live = "x-live" in request.headers

    @cached_property
    def api(self) -> ApiClient:
        """The API of this application, with the visitor's credentials."""
        return ApiClient(self.request.app, self.request, cluster=self.cluster, csrf_token=self._posted_token)

    def url(self, path: str, **query: Any) -> str:
        """Return the address of a page; `path` starts with a slash."""
        given = {"cluster": self.cluster, **query}
        asked = {name: value for name, value in given.items() if value not in (None, "")}
        return self._root + path + (f"?{urlencode(asked)}" if asked else "")

    def with_query(self, **changes: Any) -> str:
        """Return the address of this page with other query values."""
        return self.url(self.path, **{**self.request.query_params, **changes})

    @property
    def path(self) -> str:
        """The path of this page below the root of the console."""
        return self.request.url.path.removeprefix(self._root)

    async def try_get(self, path: str, **query: Any) -> tuple[Any, ApiProblem | None]:
        """Return an answer of the API, or the problem: for a part of a page that must not take the rest with it."""
        try:
            return await self.api.get(path, **query), None
        except ApiProblem as problem:
            if problem.status == 401:
                raise
            return None, problem

    def render(self, template: str, active: str = "", *, status: int = 200, **values: Any) -> Response:
        """Return the page."""
        flash = None if self.is_fragment or self.is_live else self._read_flash()
        chosen = environment().get_template(template)
        text = chosen.render(
            **values,
            t=self.t,
            page=self._frame(active, flash),
            layout="fragment.html" if self.is_fragment else "layout.html",
            url=self.url,
            with_query=self.with_query,
            query=self.request.query_params,
            path_of=path_of,
            time_chart=charts.time_chart,
        )
        answer = HTMLResponse(text, status_code=status, headers={"Cache-Control": "no-store"})
        if flash is not None:
            answer.delete_cookie(FLASH_COOKIE)
        return answer

    def render_plan(
        self,
        active: str,
        *,
        title: str,
        text: str,
        action: str,
        back: str,
        button: str,
        facts: Sequence[tuple[str, str]] = (),
        warnings: Sequence[str] = (),
        columns: Sequence[tuple[str, str]] = (),
        rows: Sequence[Sequence[str]] = (),
        hidden: Sequence[tuple[str, str]] = (),
        confirm_name: str = "",
        problem: ApiProblem | None = None,
    ) -> Response:
        """Return what a dangerous change will do, with the button that does it."""
        return self.render(
            "plan.html",
            active,
            status=problem.status if problem else 200,
            title=title,
            text=text,
            action=action,
            back=back,
            button=button,
            facts=facts,
            warnings=warnings,
            columns=columns,
            rows=rows,
            hidden=hidden,
            confirm_name=confirm_name,
            problem=problem,
        )

    def redirect(self, path: str, flash: Flash | None = None) -> Response:
        """Go to a page after a change; a dialog gets the address in a header, since `fetch` would follow by itself."""
        answer: Response
        if self.is_fragment:
            answer = Response(status_code=204, headers={"X-Location": self.url(path)})
        else:
            answer = RedirectResponse(self.url(path), status_code=303)
        if flash is not None:
            content = json.dumps([flash.kind, flash.title, flash.text[:FLASH_CHARS_MAX]]).encode()
            answer.set_cookie(
                FLASH_COOKIE,
                base64.urlsafe_b64encode(content).decode(),
                max_age=FLASH_MAX_AGE_S,
                httponly=True,
                samesite="lax",
            )
        return answer

    def _read_flash(self) -> Flash | None:
        cookie = self.request.cookies.get(FLASH_COOKIE)
        if not cookie:
            return None
        try:
            kind, title, text = json.loads(base64.urlsafe_b64decode(cookie))
        except (ValueError, binascii.Error):
            return None
        return Flash(kind if kind in ("good", "warn", "bad") else "info", str(title), str(text))

    def _frame(self, active: str, flash: Flash | None) -> dict[str, Any]:
        other = next(name for name in LANGUAGES if name != self.language)
        section = next((path for _, entries in NAVIGATION for name, path in entries if name == active), "/")
        here = self.path + (f"?{self.request.url.query}" if self.request.url.query else "")
        return {
            "html_language": HTML_LANGUAGES[self.language],
            "theme": self.theme,
            "next_theme": THEMES[(THEMES.index(self.theme) + 1) % len(THEMES)],
            "other_language": other,
            "other_language_short": LANGUAGES[other] if other != "en" else "EN",
            "active": active,
            "cluster": self.cluster if self.cluster in self.clusters else next(iter(self.clusters), ""),
            "clusters": [(name, self.url(section, cluster=name)) for name in self.clusters],
            "navigation": NAVIGATION,
            "here": here if self.request.method == "GET" else "/",
            "flash": flash,
            "events": self.url(f"{API_PREFIX}/overview/events"),
            "csrf_field": CSRF_FIELD,
            "csrf_token": self.csrf_token or "",
            "user": self.user,
        }


@cache
def environment() -> jinja2.Environment:
    """Return the templates, with autoescape for all of them and an error for every name that is not there."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("sparrow.console", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"static": static_url, "spark_paths": charts.sparkline, "bar_width": charts.bar_width}
    for name in ("count", "exact", "rate", "size", "duration", "percent", "moment", "iso"):
        made.filters[name] = getattr(formats, name)
    return made
