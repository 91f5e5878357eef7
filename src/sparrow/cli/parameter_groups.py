"""Parameter groups: dataclasses whose fields become options and arguments of a command.

    @dataclass(frozen=True, kw_only=True)
    class SparkParameters:
        master: Annotated[str | None, typer.Option(help="Master URL.")] = None

    @with_parameter_groups
    def archive(path: PathArgument, spark: SparkParameters) -> None: ...

Typer gets a function with one parameter per field (`path`, `master`); the command gets the filled dataclass.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def with_parameter_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter that is a dataclass by one parameter per field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: dict[str, inspect.Parameter] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if dataclasses.is_dataclass(kind):
            groups[parameter.name] = kind
            expanded = _fields(kind)
        else:
            expanded = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind)]
        for each in expanded:
            assert each.name not in parameters, f"{command.__name__} has two parameters {each.name!r}"
            parameters[each.name] = each

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        filled = {
            name: kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in groups.items()
        }
        command(**values, **filled)

    flat.__annotations__ = {each.name: each.annotation for each in parameters.values()}
    flat.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    return flat


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]
