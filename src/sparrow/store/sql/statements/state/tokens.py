"""SQL on `meta_token`, the access tokens of clients.

A token is revoked, never deleted: messages refer to it by number. `permissions` is JSON; NULL: the token may take the
action of its `type` on every topic and group. `addresses` is a JSON list; NULL: its requests may come from anywhere.
`acl` is a JSON list of entries, which decide instead of type and permissions; NULL: it has none.
"""

ANONYMOUS_TOKEN = " anonymous"
"""The name of the row that messages without a token refer to. No token may start with a blank."""

_SELECT = """
    SELECT id, token, type, secret, created_at, revoked_at, permissions, addresses, acl, disabled_at
    FROM meta_token"""

SELECT_ALL = f"{_SELECT} WHERE token <> '{ANONYMOUS_TOKEN}' ORDER BY id"

SELECT_ONE = f"{_SELECT} WHERE token = :token AND secret IS NOT NULL"

LOCK = "UPDATE meta_token SET type = type WHERE token = :token"
"""Lock the row of a token until the end of the transaction, on every database."""

SELECT_SECRETS = "SELECT token, secret FROM meta_token WHERE secret IS NOT NULL ORDER BY id"

SELECT_ID = "SELECT id FROM meta_token WHERE token = :token"

CHANGE = """
    UPDATE meta_token
    SET type = :type, permissions = :permissions, addresses = :addresses, acl = :acl, revoked_at = :revoked,
        disabled_at = :disabled
    WHERE token = :token"""
"""Change the permissions of a token, disable, enable or revoke it."""

CHANGE_WITH_SECRET = """
    UPDATE meta_token
    SET type = :type, permissions = :permissions, addresses = :addresses, acl = :acl, revoked_at = :revoked,
        disabled_at = :disabled, secret = :secret, created_at = :created
    WHERE token = :token AND secret IS NOT NULL"""

REPLACE_SECRET = "UPDATE meta_token SET secret = :secret WHERE token = :token AND secret = :before"
"""Store a secret under another key, unless another broker has just done so."""
