"""Subscriptions from a TOML file, from a dotted name, or from the modules of a package.

```toml
[[subscription]]
topic = "order.created"
handler = "shop.billing:on_order"
group = "billing"
retry = { max = 5, delays_s = [1, 10, 60] }
```
"""

from __future__ import annotations

import importlib
import pkgutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from sparrow.bus.errors import SubscriptionError
from sparrow.bus.retry import Retry, RetryDelays


def read_subscription_file(path: str | Path, options_known: frozenset[str]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (topic, handler, options) of every entry; a `SubscriptionError` names the wrong entry."""
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SubscriptionError(f"cannot read subscriptions from {path}: {error}") from error
    entries = document.get("subscription", [])
    unknown = document.keys() - {"subscription"}
    if unknown or not isinstance(entries, list):
        raise SubscriptionError(f"{path} may contain only [[subscription]] entries, and contains {sorted(document)}")
    return [_entry(entry, f"entry {number} of {path}", options_known) for number, entry in enumerate(entries, 1)]


def _entry(entry: dict[str, Any], where: str, options_known: frozenset[str]) -> tuple[str, str, dict[str, Any]]:
    options = dict(entry)
    topic, handler = options.pop("topic", None), options.pop("handler", None)
    if not isinstance(topic, str) or not isinstance(handler, str):
        raise SubscriptionError(f'{where} needs a topic and a handler, as in handler = "shop.billing:on_order"')
    unknown = options.keys() - options_known
    if unknown:
        raise SubscriptionError(
            f"{where} has unknown options {sorted(unknown)}; known options: {sorted(options_known)}"
        )
    try:
        if "retry" in options:
            options["retry"] = _retry(**options["retry"])
    except (TypeError, ValueError) as error:
        raise SubscriptionError(f"{where} is not valid: {error}") from error
    return topic, handler, options


def _retry(*, max: int = 15, delays_s: list[float] | None = None, immediate_retries: int = 0) -> Retry:
    if delays_s is None:
        return Retry(max=max, immediate_retries=immediate_retries)
    if not delays_s or min(delays_s) < 0:
        raise ValueError("delays_s needs at least one delay, and none below 0")
    return Retry(max=max, immediate_retries=immediate_retries, backoff=RetryDelays(tuple(delays_s)))


def import_object(name: str) -> Any:
    """Import `module:name` or `module:Class.name`."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise SubscriptionError(f'{name!r} is not a dotted name: write "module:name", as in "shop.billing:on_order"')
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing runs code of the application
        raise SubscriptionError(
            f"{name!r} cannot be imported: {type(error).__name__}: {error}. Check the name, and that its module is in "
            "the current folder or in PYTHONPATH."
        ) from error
    return found


def import_modules(package: str | ModuleType) -> Iterator[ModuleType]:
    """Import a package and all of its modules, and yield them."""
    root = _module(package) if isinstance(package, str) else package
    yield root
    for found in pkgutil.walk_packages(getattr(root, "__path__", ()), f"{root.__name__}.", onerror=_raise):
        if not found.name.endswith(".__main__"):
            yield _module(found.name)


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise SubscriptionError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def _raise(name: str) -> None:
    _module(name)
