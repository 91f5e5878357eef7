"""The first administrator of a broker with `auth` and without admin tokens: made at the first start, with a new secret.

The token is in a file of the data folder that only the user of the service can read, and is used at every start while
the settings have no admin token. The secret is not printed, because the output of servers is often collected.
"""

from __future__ import annotations

import os
import secrets
import tomllib
from pathlib import Path

import typer
from pydantic import SecretStr

from sparrow.model.access.token import SECRET_BYTES, Credentials
from sparrow.model.errors import SettingsError
from sparrow.settings import Settings

ADMINISTRATOR = "administrator"
"""The access key of the first administrator."""
ADMINISTRATOR_FILE = "administrator.toml"


def with_administrator(settings: Settings, data: Path) -> Settings:
    """Return the settings with an admin token, if requests must be signed and the settings have none."""
    broker = settings.broker
    if not broker.auth or broker.admin_tokens:
        return settings
    path = data / ADMINISTRATOR_FILE
    credentials = _read(path) or _make(path)
    tokens = {credentials.access_key: SecretStr(credentials.secret_key)}
    return settings.model_copy(update={"broker": broker.model_copy(update={"admin_tokens": tokens})})


def administrator_environment(settings: Settings) -> dict[str, str]:
    """Return the variable that gives the first administrator to broker processes, whose settings do not have it."""
    return {
        f"SPARROW_BROKER__ADMIN_TOKENS__{name.upper()}": secret_key.get_secret_value()
        for name, secret_key in settings.broker.admin_tokens.items()
        if settings.broker.auth and name == ADMINISTRATOR
    }


def _read(path: Path) -> Credentials | None:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        found = tomllib.loads(text)
        return Credentials(str(found["access_key"]), str(found["secret_key"]))
    except (tomllib.TOMLDecodeError, KeyError) as cause:
        raise SettingsError(
            "broker.admin_tokens",
            "none",
            f"the settings, and {path} cannot be read ({cause})",
            f"an admin token, or remove {path}: the next start makes another administrator",
        ) from cause


def _make(path: Path) -> Credentials:
    credentials = Credentials(ADMINISTRATOR, secrets.token_hex(SECRET_BYTES))
    draft = path.with_suffix(f".{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(
                "# The first administrator of this broker. Issue tokens with it, and keep it secret.\n"
                f'access_key = "{credentials.access_key}"\nsecret_key = "{credentials.secret_key}"\n'
            )
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # not over a file that another process has just made
    except FileExistsError:
        found = _read(path)
        assert found is not None
        return found
    finally:
        draft.unlink()
    typer.echo(f"made the first administrator: access key {credentials.access_key}, secret key in {path}")
    return credentials
