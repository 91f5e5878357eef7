"""The public names of the client for asyncio: `from sparrow import aio`, then `aio.Producer`, `aio.Consumer` and so on.

The names and arguments are those of `sparrow`; every call that waits is a coroutine.
"""

# ruff: noqa: PLC0414 -- "import X as X" tells type checkers that X is public here

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparrow.client.aio import Admin as Admin
    from sparrow.client.aio import Consumer as Consumer
    from sparrow.client.aio import PopConsumer as PopConsumer
    from sparrow.client.aio import Producer as Producer
    from sparrow.exports import *  # noqa: F403
else:
    from sparrow.exports import import_name, modules_of_names

    _MODULES = modules_of_names(clients="sparrow.client.aio")

    __all__ = list(_MODULES)

    def __getattr__(name):
        """Import a public name when it is used first."""
        return import_name(name, _MODULES, globals())

    def __dir__():
        return sorted({*globals(), *__all__})
