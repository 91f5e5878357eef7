"""Authorization of requests to a name server: everyone may read routes, and administrators may change them.

Requests are checked if the setting `auth` is on. A name server has no tokens but those of its settings, so it cannot
tell the clients of brokers apart; brokers register with an admin token.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from pydantic import SecretStr

from sparrow.model.access.token import TOKEN_NAME_CHARS_MAX
from sparrow.net.access.audit_log import AccessRefused, RefusalCause
from sparrow.net.access.signatures import is_signed_with
from sparrow.wire.codes import RequestCode, request_code_name
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.signing import ACCESS_KEY_FIELD, SIGNATURE_FIELD, Challenge

OPEN_CODES = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_NAMESRV_CONFIG,
    }
)
"""The requests that need no signature: clients send them, and they change nothing."""
AUDITED_CODES = frozenset(
    {
        RequestCode.UNREGISTER_BROKER,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    }
)
"""The changes that the audit log has. Brokers register every 30 s, which is no change that an administrator makes."""


class AdminGuard:
    """Checks that changes are signed by an administrator."""

    def __init__(self, admins: Mapping[str, SecretStr], *, requires_challenge: bool) -> None:
        """`requires_challenge`: refuse RocketMQ's signatures, which can be replayed."""
        self._admins = {name: secret_key.get_secret_value() for name, secret_key in admins.items()}
        self._requires_challenge = requires_challenge
        self._nobodys_secret_key = secrets.token_hex()
        """Unknown access keys are compared with it: they get the same answer as a wrong secret, in the same time."""

    def check(self, command: RemotingCommand, challenge: Challenge | None, _host: str = "") -> str | None:
        """Return the access key of a request, None if it needs none; raise `NotPermitted` if it may not be sent.

        Admin tokens have no source addresses.
        """
        if command.code in OPEN_CODES:
            return None
        fields = command.fields()
        name = fields.get(ACCESS_KEY_FIELD)
        if not name or SIGNATURE_FIELD not in fields:
            raise _refusal(
                command,
                "unsigned",
                "the request is not signed, and this name server accepts changes only from its admin tokens: give the "
                "broker one in broker.admin_tokens, or the client its access key and secret key",
            )
        secret_key = self._admins.get(name, self._nobodys_secret_key)
        if not is_signed_with(secret_key, command, fields, challenge, requires_challenge=self._requires_challenge):
            raise _refusal(
                command,
                "signature",
                f"the signature is not that of an admin token {name[:TOKEN_NAME_CHARS_MAX]!r} of this name server: "
                "check the access key and the secret key",
            )
        return name


def _refusal(command: RemotingCommand, cause: RefusalCause, why: str) -> AccessRefused:
    return AccessRefused(request_code_name(command.code), why, cause=cause)
