"""Parameter styles: statements name their values `:name`; a driver translates that into its own style."""

from __future__ import annotations

import re
from functools import lru_cache

_NAMED = re.compile(r"(?<![:\w]):([a-z_][a-z_0-9]*)")


@lru_cache(4096)
def to_numeric_style(sql: str) -> tuple[str, tuple[str, ...]]:
    """Replace each `:name` by `$1`, `$2` …; return the text and the names in that order."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    return _NAMED.sub(number, sql), tuple(names)


@lru_cache(4096)
def to_pyformat_style(sql: str) -> str:
    """Replace each `:name` by `%(name)s`."""
    return _NAMED.sub(r"%(\1)s", sql.replace("%", "%%"))
