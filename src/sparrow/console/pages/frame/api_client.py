"""How a page asks the API: a request to `/api/v1` of the same application, with the credentials of the visitor.

So a page can show and do only what the API gives and allows, and every change passes the API's own checks and audit.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx
from starlette.requests import Request
from starlette.types import ASGIApp

from sparrow.console.security import CSRF_HEADER

API_ROOT = "/api/"
API_PREFIX = "/api/v1"
FORWARDED_HEADERS = ("cookie", "authorization", "origin", "sec-fetch-site", "user-agent")
"""Headers of the visitor that the API judges: who asks, and for which site."""


class ApiProblem(Exception):
    """An answer of the API that is not a success: problem details as in RFC 9457."""

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        super().__init__(status, document)
        self.status, self.document = status, document

    @property
    def title(self) -> str:
        """A short sentence for the kind of problem."""
        return str(self.document.get("title") or httpx.codes.get_reason_phrase(self.status))

    @property
    def detail(self) -> str:
        """What happened, with which value, and what to do."""
        return str(self.document.get("detail") or "")

    def __str__(self) -> str:
        return f"{self.status} {self.title}: {self.detail}"


class ApiClient:
    """The API of this application, as one visitor may use it."""

    def __init__(self, app: ASGIApp, request: Request, *, cluster: str | None, csrf_token: str | None) -> None:
        host = request.client.host if request.client else "127.0.0.1"
        self._transport = httpx.ASGITransport(app, client=(host, request.client.port if request.client else 0))
        self._base = f"{request.url.scheme}://{request.url.netloc}{request.scope.get('root_path', '')}{API_PREFIX}"
        self._headers = {name: request.headers[name] for name in FORWARDED_HEADERS if name in request.headers}
        self._cluster = cluster
        if csrf_token:
            self._headers[CSRF_HEADER] = csrf_token

    async def get(self, path: str, **query: Any) -> Any:
        """Return the JSON answer of a GET. Empty and absent query values are left out."""
        return await self.request("GET", path, query=query)

    async def request(self, method: str, path: str, *, query: dict[str, Any] | None = None, body: Any = None) -> Any:
        """Return the JSON answer of a request; raise `ApiProblem` if it is not a success."""
        given = {"cluster": self._cluster, **(query or {})}
        asked = {name: value for name, value in given.items() if value not in (None, "")}
        async with httpx.AsyncClient(transport=self._transport, headers=self._headers, trust_env=False) as client:
            answer = await client.request(method, self._base + path, params=asked, json=body)
        if answer.is_success:
            return answer.json() if answer.content else None
        try:
            document = answer.json()
        except ValueError:
            document = {"detail": answer.text[:1000]}
        raise ApiProblem(answer.status_code, document if isinstance(document, dict) else {})


def path_of(*parts: str) -> str:
    """Return a path of the API or of a page; each part is one segment, whatever characters it has."""
    return "".join("/" + quote(part, safe="") for part in parts)
