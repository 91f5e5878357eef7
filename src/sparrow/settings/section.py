"""What sections share: renamed fields, secrets, units of size, and TLS of listeners."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

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


class ListenerTls(Section):
    """TLS of a port: the settings that every section with a port has."""

    tls_certificate: str | None = Field(
        default=None, description="File with the certificate of this server (PEM); it switches TLS on."
    )
    tls_key: str | None = Field(
        default=None, description="File with the key of the certificate, if the file of the certificate has none."
    )
    tls_client_authorities: str | None = Field(
        default=None, description="File with the authorities of clients: each must show a certificate (mutual TLS)."
    )

    @model_validator(mode="after")
    def _refuse_files_without_a_certificate(self) -> Self:
        if self.tls_certificate is None and (self.tls_key is not None or self.tls_client_authorities is not None):
            raise ValueError("tls_key and tls_client_authorities need tls_certificate")
        return self


def warn_renamed(old: str, new: str) -> None:
    """Warn that a setting has a new name."""
    warnings.warn(f"the setting {old} is now called {new}; the old name is accepted until 0.3", FutureWarning, 2)
