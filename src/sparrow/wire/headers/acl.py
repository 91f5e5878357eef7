"""Headers of the administration of users and ACLs (RocketMQ 5)."""

from __future__ import annotations

from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header


class UserRequest(Header, frozen=True):
    username: str = ""


class ListUsers(Header, frozen=True):
    filter: str | None = None
    """A part of the names."""


class AclRequest(Header, frozen=True):
    subject: str | None = None
    """`User:name`."""


class DeleteAcl(Header, frozen=True):
    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None
    """The entry to delete; without it, all are deleted."""


class ListAcls(Header, frozen=True):
    subject_filter: str | None = None
    resource_filter: str | None = None


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.AUTH_CREATE_USER: UserRequest,
    RequestCode.AUTH_UPDATE_USER: UserRequest,
    RequestCode.AUTH_DELETE_USER: UserRequest,
    RequestCode.AUTH_GET_USER: UserRequest,
    RequestCode.AUTH_LIST_USER: ListUsers,
    RequestCode.AUTH_CREATE_ACL: AclRequest,
    RequestCode.AUTH_UPDATE_ACL: AclRequest,
    RequestCode.AUTH_DELETE_ACL: DeleteAcl,
    RequestCode.AUTH_GET_ACL: AclRequest,
    RequestCode.AUTH_LIST_ACL: ListAcls,
}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {}
