"""What all sections share: renamed fields, secrets, and units of size."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def _hide(value: object) -> object:
    return SecretStr(value) if isinstance(value, str) else value


# Hidden before validation: a validation error quotes the value.
HiddenText = Annotated[SecretStr, BeforeValidator(_hide)]
SecretKey = Annotated[SecretStr, Field(min_length=8), BeforeValidator(_hide)]


class Section(BaseModel):
    """One section of the settings: frozen, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    OLD_NAMES: ClassVar[Mapping[str, str]] = {}
    """Field names of version 0.1 and their replacements."""

    @model_validator(mode="before")
    @classmethod
    def _accept_old_names(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not (old := cls.OLD_NAMES.keys() & given.keys()):
            return given
        renamed = dict(given)
        for name in sorted(old):
            warn_renamed(name, cls.OLD_NAMES[name])
            # The old name wins: the new one may only hold the default that partial updates fill in.
            renamed[cls.OLD_NAMES[name]] = renamed.pop(name)
        return renamed


def warn_renamed(old: str, new: str) -> None:
    """Warn that a setting has a new name."""
    warnings.warn(f"the setting {old} is now called {new}; the old name is accepted until 0.3", FutureWarning, 2)
