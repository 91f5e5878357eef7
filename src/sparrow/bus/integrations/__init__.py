"""Integrations with web frameworks; none of them is imported before the application uses it."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from sparrow.model.errors import Refused

if TYPE_CHECKING:
    from sparrow.bus.common import AnyEventBus

_HOSTS = (
    ("starlette.applications", "Starlette", "sparrow.bus.integrations.fastapi"),  # FastAPI derives from it
    ("flask.app", "Flask", "sparrow.bus.integrations.flask"),
    ("django.core.handlers.base", "BaseHandler", "sparrow.bus.integrations.django.server"),
)
"""(module of the application class, its name, our module)"""


def install(bus: AnyEventBus, app: Any, **options: Any) -> None:
    """Start and stop the bus with an application of a supported framework."""
    for module, name, ours in _HOSTS:
        host = getattr(sys.modules.get(module), name, None)  # not imported: the application uses another framework
        if host is not None and isinstance(app, host):
            importlib.import_module(ours).install(bus, app, **options)
            return
    raise Refused(
        f"the bus cannot be installed in {app!r}: supported are FastAPI, Starlette, Flask and Django's wsgi and asgi "
        "applications; elsewhere use `with bus:` or `async with bus.aio:`"
    )
