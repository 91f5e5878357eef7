"""Values that cannot be used: the operator or the programmer has to change one."""

from __future__ import annotations

from sparrow.model.errors.base import SparrowError
from sparrow.model.urls import hide_password


class SettingsError(SparrowError):
    """A setting or an argument has a value that cannot be used."""

    def __init__(self, key: str, value: object, origin: str, suggestion: str, reason: str = "") -> None:
        """Keep what is wrong. The password in a URL is hidden; `reason` says why the value cannot be used."""
        if isinstance(value, str):
            value = hide_password(value)
        super().__init__(key, value, origin, suggestion, reason)
        self.key, self.value, self.origin, self.suggestion, self.reason = key, value, origin, suggestion, reason

    def __str__(self) -> str:
        use = self.suggestion.rstrip(",")
        if self.reason:
            return f"{self.key} = {self.value!r} cannot be used: {self.reason}. Write {use}."
        return f"{self.key} = {self.value!r} (from {self.origin}) cannot be used: use {use}"


class MissingExtra(SparrowError, ImportError):
    """An optional package is not installed."""

    def __init__(self, module: str, extra: str, for_: str) -> None:
        super().__init__(module, extra, for_)
        self.module, self.extra, self.for_ = module, extra, for_

    def __str__(self) -> str:
        return f'{self.for_} needs {self.module}: pip install "sparrowmq[{self.extra}]"'


class CannotListen(SettingsError):
    """A server cannot listen on its address, mostly because another process does."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__("address", address, "the settings", "another port")
        self.address, self.why = address, why

    def __str__(self) -> str:
        why = self.why[:1].lower() + self.why[1:]
        return f"cannot listen on {self.address}: {why}. Stop the other process, or choose another port."
