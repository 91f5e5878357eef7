"""The secrets of tokens in a database: as they are, or encrypted with keys from the settings (`sql.token_keys`).

A stored secret of less than 100 bytes is not encrypted; anything longer is a Fernet token (AES in CBC mode with an
HMAC), made by the package `cryptography`. The first key encrypts, and every key decrypts, so that keys can be replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparrow.extras import require
from sparrow.model.access.token import PASSWORD_BYTES_MAX
from sparrow.model.errors import SettingsError, StorageError

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

_GENERATE_KEY = 'python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'


_FERNET_BYTES_MIN = 100
"""Length of the Fernet token of the shortest secret: 73 bytes in base64."""
assert _FERNET_BYTES_MIN > PASSWORD_BYTES_MAX


class UnreadableSecret(StorageError):
    """A secret is encrypted, and no key in the settings decrypts it."""

    def __init__(self, database: str, token: str, keys: int) -> None:
        super().__init__(database, token, keys)
        self.database, self.token, self.keys = database, token, keys

    def __str__(self) -> str:
        why = "no key in sql.token_keys decrypts it" if self.keys else "sql.token_keys is empty"
        return (
            f"the secret of token {self.token!r} in {self.database} is encrypted, and {why}: "
            "add the key that it was encrypted with"
        )


class TokenSecrets:
    """Encrypts and decrypts secrets. Without keys, secrets are stored as they are."""

    def __init__(self, keys: str, database: str) -> None:
        """Parse the keys, separated by commas; raise `SettingsError` if one cannot be used."""
        self._database = database
        names = [key.strip() for key in keys.split(",") if key.strip()]
        self._keys: list[Fernet] = []
        if not names:
            return
        require("cryptography", extra="encryption", for_="the setting sql.token_keys")
        from cryptography.fernet import Fernet

        try:
            self._keys = [Fernet(name) for name in names]
        except ValueError as cause:
            raise SettingsError(
                "sql.token_keys",
                "…",
                "the settings",
                f"32 random bytes in URL-safe base64, as {_GENERATE_KEY} prints them",
            ) from cause

    def to_stored(self, secret: bytes) -> bytes:
        """Return what is stored for a secret."""
        return self._keys[0].encrypt(secret) if self._keys else secret

    def from_stored(self, stored: bytes, *, token: str) -> bytes:
        """Return the secret; raise `UnreadableSecret` if no key decrypts it."""
        if len(stored) < _FERNET_BYTES_MIN:
            return stored
        for key in self._keys:
            secret = _decrypt(key, stored)
            if secret is not None:
                return secret
        raise UnreadableSecret(self._database, token, len(self._keys))

    def is_current(self, stored: bytes) -> bool:
        """Return whether the secret is stored as `to_stored` would store it now."""
        if not self._keys:
            return len(stored) < _FERNET_BYTES_MIN
        return len(stored) >= _FERNET_BYTES_MIN and _decrypt(self._keys[0], stored) is not None


def _decrypt(key: Fernet, stored: bytes) -> bytes | None:
    from cryptography.fernet import InvalidToken

    try:
        return key.decrypt(stored)
    except InvalidToken:
        return None
