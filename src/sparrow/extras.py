"""Optional packages: what a missing one is needed for, and the extra of `sparrowmq` that installs it."""

from __future__ import annotations

from importlib import import_module

from sparrow.model.errors import MissingExtra


def require(*modules: str, extra: str, for_: str) -> None:
    """Import the modules, or raise `MissingExtra` with the command that installs them.

    `require("pyarrow", extra="tables", for_="Producer.send_table")` stands before the `import pyarrow` of a function,
    or at the top of a package's `__init__` if the whole package needs it.
    """
    for module in modules:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
                raise  # the package is installed, and one that it needs is not
            raise MissingExtra(module, extra, for_) from error
