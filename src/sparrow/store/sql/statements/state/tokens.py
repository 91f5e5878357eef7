"""SQL on `meta_token`, the access tokens of clients.

A token is revoked, never deleted: messages refer to it by number. `permissions` is JSON; NULL: the token may take the
action of its `type` on every topic and group. `addresses` is a JSON list; NULL: its requests may come from anywhere.
"""

ANONYMOUS_TOKEN = " anonymous"
"""The name of the row that messages without a token refer to. No token may start with a blank."""

SELECT_ALL = f"""
    SELECT id, token, type, secret, created_at, revoked_at, permissions, addresses
    FROM meta_token
    WHERE token <> '{ANONYMOUS_TOKEN}'
    ORDER BY id"""

SELECT_SECRETS = "SELECT token, secret FROM meta_token WHERE secret IS NOT NULL ORDER BY id"

SELECT_ID = "SELECT id FROM meta_token WHERE token = :token"

CHANGE = """
    UPDATE meta_token
    SET type = :type, permissions = :permissions, addresses = :addresses, revoked_at = :revoked
    WHERE token = :token"""
"""Change the permissions of a token, or revoke it."""

REPLACE_SECRET = "UPDATE meta_token SET secret = :secret WHERE token = :token AND secret = :before"
"""Store a secret under another key, unless another broker has just done so."""
