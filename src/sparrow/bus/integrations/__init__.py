"""The bus in the frameworks people use. None of them is imported here: an application brings its own."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from sparrow.model.errors import Refused

if TYPE_CHECKING:
    from sparrow.bus.common import AnyEventBus

_HOSTS = (
    ("starlette.applications", "Starlette", "sparrow.bus.integrations.fastapi"),  # FastAPI is one
    ("flask.app", "Flask", "sparrow.bus.integrations.flask"),
    ("django.core.handlers.base", "BaseHandler", "sparrow.bus.integrations.django.server"),
)
"""(where the class of the application is, its name, our module for it)"""


def install(bus: AnyEventBus, app: Any, **options: Any) -> None:
    """Have the bus start and stop with the application, whatever that is made with."""
    for module, name, ours in _HOSTS:
        host = getattr(sys.modules.get(module), name, None)  # not loaded: then the application is not one of these
        if host is not None and isinstance(app, host):
            importlib.import_module(ours).install(bus, app, **options)
            return
    raise Refused(
        f"the bus cannot be installed in {app!r}: it knows FastAPI, Starlette, Flask and Django's wsgi and asgi "
        "applications; elsewhere use `async with bus:` or `with bus:`"
    )
