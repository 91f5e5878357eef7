"""SQL on `meta_token`, the access tokens of clients.

A token is revoked, never deleted: messages refer to it by number.
"""

SELECT_ALL = """
    SELECT id, token, type, secret_hash, created_at, revoked_at
    FROM meta_token
    WHERE secret_hash IS NOT NULL
    ORDER BY id"""
"""Without the anonymous token, which has no secret."""

SELECT_ID = "SELECT id FROM meta_token WHERE token = :token"

REVOKE = "UPDATE meta_token SET revoked_at = :revoked WHERE token = :token AND type = :type"
