"""The administrator of platforms that require tokens, and the broker settings that name it."""

from sparrow.model.access.token import Credentials

ADMIN = Credentials("operator", "a long secret")
AUTH = {"auth": True, "admin_tokens": {ADMIN.access_key: ADMIN.secret_key}}
