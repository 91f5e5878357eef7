"""The console: a REST API (`/api/v1`) and web pages, served apart from the brokers for one or several clusters."""

from __future__ import annotations

from sparrow.extras import require

require("fastapi", "uvicorn", extra="console", for_="sparrow.console")

from sparrow.console.app import create_app  # noqa: E402

__all__ = ["create_app"]
