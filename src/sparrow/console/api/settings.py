"""Routes of settings: those that the console runs with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field, SecretStr

from sparrow.console.context import ContextDependency
from sparrow.console.masks import HIDDEN
from sparrow.console.models.fields import ApiModel, Text

router = APIRouter(tags=["settings"])
DEFAULT_ORIGIN, PROGRAM_ORIGIN = "default", "program"
"""Of a value that nobody set, and of one that the program that created the console has set."""
_ACCOUNT = re.compile(r"(?<=://)[^/@]*@")
"""User and password in the URL of a database."""


class SettingAnswer(ApiModel):
    """A setting of the console."""

    name: str = Field(examples=["console.port"])
    value: Text = Field(description="As text; secrets are hidden.")
    is_default: bool = Field(description="Whether it has its default value.")
    origin: str = Field(
        description="Where the value comes from: default, sparrow.toml, an environment variable, a flag, or program.",
        examples=["SPARROW_CONSOLE__PORT"],
    )
    description: str


@router.get("/settings", response_model=list[SettingAnswer])
async def list_settings(context: ContextDependency) -> list[dict[str, Any]]:
    """List the settings that the console runs with, and where each value comes from."""
    return list(_describe(context.settings, "console", context.origins))


def _describe(settings: BaseModel, section: str, origins: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for name, field in type(settings).model_fields.items():
        value, full_name = getattr(settings, name), f"{section}.{name}"
        is_default = value == field.get_default(call_default_factory=True)
        yield {
            "name": full_name,
            "value": _show(value),
            "is_default": is_default,
            "origin": origins.get(full_name, DEFAULT_ORIGIN if is_default else PROGRAM_ORIGIN),
            "description": field.description or "",
        }


def _show(value: Any) -> str:
    """Return a value without secrets: those of tokens, and the password in the URL of a database."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case SecretStr():
            return HIDDEN
        case BaseModel():
            return ", ".join(f"{name}={_show(getattr(value, name))}" for name in type(value).model_fields)
        case dict():
            return "; ".join(f"{name}: {_show(each)}" for name, each in value.items())
        case list() | tuple():
            return ", ".join(map(_show, value))
        case str() if "://" in value:
            return _ACCOUNT.sub(f"{HIDDEN}@", value)
        case _:
            return str(value)
