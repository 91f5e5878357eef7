"""Load the settings for a command: flags over the environment over `sparrow.toml` over defaults."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparrow.model.errors import SettingsError
from sparrow.settings import Settings

_FLAGS = {
    ("name_server", "host"): "--host",
    ("name_server", "port"): "--name-server-port",
    ("broker", "host"): "--host",
    ("broker", "advertised_host"): "--advertised-host",
    ("broker", "port"): "--port",
    ("broker", "store"): "--store",
    ("log", "flush"): "--flush",
}


def load_settings(
    *,
    host: str | None = None,
    advertised_host: str | None = None,
    port: int | None = None,
    name_server_port: int | None = None,
    store: str | None = None,
    flush: str | None = None,
) -> Settings:
    """Return all settings. `SettingsError` names the first bad one, where it was set, and what is allowed."""
    given: dict[str, dict[str, Any]] = {
        "name_server": {"host": host, "port": name_server_port},
        "broker": {"host": host, "advertised_host": advertised_host, "port": port, "store": store},
        "log": {"flush": flush},
    }
    flags: dict[str, Any] = {}
    for section, fields in given.items():
        if set_fields := {name: value for name, value in fields.items() if value is not None}:
            flags[section] = set_fields
    try:
        return Settings(**flags)
    except ValidationError as cause:
        raise _settings_error(cause, flags) from cause
    except (OSError, ValueError) as cause:  # sparrow.toml is unreadable, or not TOML
        path = str(Path("sparrow.toml").resolve())
        raise SettingsError("sparrow.toml", path, "the current folder", f"a readable TOML file ({cause})") from cause


def usable_folder(data: Path) -> Path:
    """Create the data folder if it is missing. `SettingsError` if that is not possible."""
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise SettingsError("--data", str(data), "the command line", f"a writable folder ({cause.strerror})") from cause
    return data


def _settings_error(cause: ValidationError, flags: dict[str, Any]) -> SettingsError:
    first = cause.errors()[0]
    path = tuple(map(str, first["loc"]))
    return SettingsError(".".join(path), first["input"], _origin(path, flags), _suggestion(first["type"], path, first))


def _origin(path: tuple[str, ...], flags: dict[str, Any]) -> str:
    section, name = path[0], path[1] if len(path) > 1 else ""
    if name in flags.get(section, {}):
        return _FLAGS[section, name]
    for variable in ("SPARROW_" + "__".join(path[:depth]).upper() for depth in range(len(path), 0, -1)):
        if variable in {known.upper() for known in os.environ}:
            return variable
    return "sparrow.toml"


def _suggestion(kind: str, path: tuple[str, ...], error: Any) -> str:
    if kind == "extra_forbidden":
        section: Any = Settings
        for part in path[:-1]:
            section = section.model_fields[part].annotation
        close = difflib.get_close_matches(path[-1], section.model_fields, n=1)
        return f"the setting {close[0]}" if close else "a setting that docs/broker.md lists"
    message = str(error["msg"]).removeprefix("Input should be ")
    return f"a value {message}" if message.startswith(("less ", "greater ")) else message
