"""`sparrow settings`: every setting, its value, and where the value comes from."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer
from pydantic import BaseModel, SecretStr

from sparrow.cli.exit_codes import ExitCode
from sparrow.cli.output import JsonOption, print_fields, print_json, print_note, print_table
from sparrow.cli.settings.loader import load_settings, origin_of_setting
from sparrow.model.urls import hide_password
from sparrow.settings import Settings

DEFAULT_ORIGIN = "default"
EXAMPLES = """
Examples:

[bold]sparrow settings[/bold]   all settings

[bold]sparrow settings broker --changed[/bold]   what differs from the defaults in one section

[bold]sparrow settings broker.port[/bold]

[bold]SPARROW_LOG__FLUSH=sync sparrow settings log.flush --json[/bold]
"""
_HIDDEN = "********"
_OLD_SECTIONS = ("naming",)


class SettingRow(msgspec.Struct, frozen=True):
    """One setting."""

    name: str
    value: Any
    """The value in use; secrets are hidden."""
    origin: str
    """`default`, `sparrow.toml`, or the environment variable."""
    default: Any
    description: str


def settings(
    name: Annotated[str | None, typer.Argument(help="A section such as broker, or one setting: broker.port.")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that differ from their defaults.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the settings that a server started here would use, and where each value comes from.

    Flags of a server go before variables such as SPARROW_BROKER__PORT, these before sparrow.toml in this folder, and
    that before the defaults.
    """
    rows = list(setting_rows(load_settings()))
    if name is not None:
        rows = _matching(rows, name)
    if changed:
        rows = [row for row in rows if row.origin != DEFAULT_ORIGIN]
    if as_json:
        print_json(rows)
    elif len(rows) == 1 and rows[0].name == name:
        print_fields(msgspec.structs.asdict(rows[0]))
    elif rows:
        print_table(("setting", "value", "origin"), [(row.name, row.value, row.origin) for row in rows])
    else:
        print_note("All settings have their default values.")


def setting_rows(loaded: Settings) -> Iterator[SettingRow]:
    """Yield every setting of every section."""
    for section, field in Settings.model_fields.items():
        if section not in _OLD_SECTIONS:
            yield from _rows_of(getattr(loaded, section), field.default, (section,))


def _rows_of(section: BaseModel, defaults: BaseModel, path: tuple[str, ...]) -> Iterator[SettingRow]:
    for name, field in type(section).model_fields.items():
        value, default = getattr(section, name), getattr(defaults, name)
        if isinstance(value, BaseModel):
            yield from _rows_of(value, default, (*path, name))
        else:
            origin = origin_of_setting((*path, name)) or DEFAULT_ORIGIN
            shown, usual = _hide_secrets(value), _hide_secrets(default)
            yield SettingRow(".".join((*path, name)), shown, origin, usual, field.description or "")


def _hide_secrets(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return _HIDDEN
    if isinstance(value, BaseModel):
        return {name: _hide_secrets(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {name: _hide_secrets(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_hide_secrets(each) for each in value]
    return hide_password(value) if isinstance(value, str) and "://" in value else value


def _matching(rows: list[SettingRow], name: str) -> list[SettingRow]:
    found = [row for row in rows if row.name == name or row.name.startswith(f"{name}.")]
    if not found:
        known = {row.name for row in rows} | {row.name.partition(".")[0] for row in rows}
        near = difflib.get_close_matches(name, known, 1)
        print_note(f"sparrow: there is no setting {name!r}" + (f": did you mean {near[0]}?" if near else ""))
        raise typer.Exit(ExitCode.NOT_FOUND)
    return found
