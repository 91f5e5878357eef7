"""URLs with passwords, as errors and logs may show them."""

from __future__ import annotations

import re

_PASSWORD_IN_URL = re.compile(r"((?:[\w+.-]+://)?+[^:/@]*):.*@")


def hide_password(url: str) -> str:
    """Return a URL without its password."""
    return _PASSWORD_IN_URL.sub(r"\1:***@", url, count=1)
