"""The style sheet, the script and the icons. Their addresses have a hash of the content, so browsers keep them."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from starlette import staticfiles
from starlette.responses import Response
from starlette.types import Scope

MAX_AGE_S = 365 * 86_400
PATH = "/static"


class StaticFiles(staticfiles.StaticFiles):
    """The files below `static`, which browsers may keep for ever if they ask with the hash."""

    def __init__(self) -> None:
        super().__init__(packages=[("sparrow.console", "static")])

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file."""
        answer = await super().get_response(path, scope)
        if answer.status_code == 200 and scope["query_string"].startswith(b"v="):
            answer.headers["Cache-Control"] = f"public, max-age={MAX_AGE_S}, immutable"
        return answer


@cache
def static_url(name: str) -> str:
    """Return the path of a static file with a hash of its content."""
    content = resources.files("sparrow.console").joinpath("static", name).read_bytes()
    return f"{PATH}/{name}?v={hashlib.sha256(content).hexdigest()[:12]}"
