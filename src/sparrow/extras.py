"""Optional packages: what a missing one is needed for, and the extra of `sparrowmq` that installs it."""

from __future__ import annotations

from importlib.util import find_spec

from sparrow.model.errors import MissingExtra


def require(*modules: str, extra: str, for_: str) -> None:
    """Raise `MissingExtra`, with the command that installs them, unless all modules are installed. Imports nothing.

    `require("pyarrow", extra="tables", for_="Producer.send_table")` stands before the `import pyarrow` of a function,
    or at the top of a package's `__init__` if the whole package needs it.
    """
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(module, extra, for_)
