"""Sparrow: a message platform that is compatible with RocketMQ, with SQL stores, an event bus and Spark.

The public names of the client are here: `from sparrow import Message, Producer, Consumer, Admin`. These classes block;
`sparrow.aio` has the same names for asyncio. Each name is imported when it is used first, so `import sparrow` is light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from sparrow import aio as aio
    from sparrow.client.blocking import Admin as Admin
    from sparrow.client.blocking import Consumer as Consumer
    from sparrow.client.blocking import PopConsumer as PopConsumer
    from sparrow.client.blocking import Producer as Producer
    from sparrow.exports import *  # noqa: F403
    from sparrow.model import errors as errors
else:
    from importlib import import_module

    from sparrow.exports import import_name, modules_of_names

    _MODULES = modules_of_names(clients="sparrow.client.blocking")
    _SUBMODULES = {"aio": "sparrow.aio", "errors": "sparrow.model.errors"}

    __all__ = list(_MODULES)
    __all__ += ["__version__", "aio", "errors"]

    def __getattr__(name):
        """Import a public name when it is used first."""
        if name in _SUBMODULES:
            return import_module(_SUBMODULES[name])
        return import_name(name, _MODULES, globals())

    def __dir__():
        return sorted({*globals(), *__all__})
