"""RocketMQ 5's admin requests for ACLs (`mqadmin createAcl`, …). The ACL of a user is the permissions of its token.

1. Creating and updating are the same: the entry of each resource is replaced, the others stay.
2. A token of a type and patterns has entries that allow the same. Changing one of them makes it a user with an ACL.
3. While `auth` is off, ACLs are shown and not changed, like tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

from sparrow.broker.admin.tokens import require_auth
from sparrow.broker.admin.users import existing_user, existing_users, refusing_like_rocketmq
from sparrow.broker.context import Broker
from sparrow.model.access.acl import (
    entries_of,
    format_subject,
    merge_entries,
    parse_entry,
    parse_policy,
    parse_resource,
    parse_subject,
    with_entries,
)
from sparrow.model.access.acl_entry import AclEntry
from sparrow.model.errors import Refused
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire import bodies
from sparrow.wire.bodies import AclInfo, PolicyEntryInfo, PolicyInfo
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import AclRequest, DeleteAcl, ListAcls


@refusing_like_rocketmq
async def update_acl(request: AclRequest, broker: Broker, call: RequestContext) -> HandlerResponse:
    """Add entries to the ACL of a user, and replace those of the same resources."""
    require_auth(broker)
    info = call.body(AclInfo)
    name = parse_subject(info.subject or request.subject)
    changes = read_entries(info)
    async with broker.token_turn:
        token = await existing_user(broker, name)
        changed = with_entries(token, merge_entries(entries_of(token), changes))
        await broker.store.tokens.put(changed, before=token)
    return HandlerResponse()


@refusing_like_rocketmq
async def delete_acl(request: DeleteAcl, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Delete the entry of a resource, or all entries."""
    require_auth(broker)
    name = parse_subject(request.subject)
    resource = parse_resource(request.resource) if request.resource else None
    policy = parse_policy(request.policy_type)
    async with broker.token_turn:
        token = await existing_user(broker, name)
        entries = entries_of(token)
        kept = [entry for entry in entries if resource and (entry.resource, entry.policy) != (resource, policy)]
        if len(kept) == len(entries):
            raise Refused(
                f"user {name!r} has no ACL entry{f' for {resource} in the policy {policy}' if resource else ''}: "
                "getAcl shows those that it has"
            )
        await broker.store.tokens.put(with_entries(token, kept), before=token)
    return HandlerResponse()


@refusing_like_rocketmq
async def get_acl(request: AclRequest, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return the ACL of a user; no body if it has none."""
    name = parse_subject(request.subject)
    entries = entries_of(await existing_user(broker, name))
    return HandlerResponse.of(write_entries(name, entries)) if entries else HandlerResponse()


@refusing_like_rocketmq
async def list_acls(request: ListAcls, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return the ACLs of the subjects that contain a filter, with the entries whose resource contains another."""
    found = []
    for token in await existing_users(broker):
        if (request.subject_filter or "") in format_subject(token.name):
            entries = [entry for entry in entries_of(token) if (request.resource_filter or "") in entry.resource]
            if entries:
                found.append(write_entries(token.name, entries))
    return HandlerResponse(body=bodies.write(found)) if found else HandlerResponse()


def read_entries(info: AclInfo) -> list[AclEntry]:
    """Return the entries of a request; raise `Refused` if one is not valid, or there is none."""
    found = [
        parse_entry(policy.policy_type, entry.resource, entry.actions, entry.source_ips, entry.decision)
        for policy in info.policies
        for entry in policy.entries
    ]
    if not found:
        raise Refused("the ACL has no entry: give at least one resource, with its actions and a decision")
    return found


def write_entries(name: str, entries: Iterable[AclEntry]) -> AclInfo:
    """Return the ACL of a user as a body, its policies in the order of their first entry."""
    policies: dict[str, list[PolicyEntryInfo]] = {}
    for entry in entries:
        policies.setdefault(entry.policy, []).append(
            PolicyEntryInfo(entry.resource, [*entry.actions], [*entry.addresses] or None, entry.decision)
        )
    return AclInfo(format_subject(name), [PolicyInfo(policy, listed) for policy, listed in policies.items()])


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.AUTH_CREATE_ACL: update_acl,
    RequestCode.AUTH_UPDATE_ACL: update_acl,
    RequestCode.AUTH_DELETE_ACL: delete_acl,
    RequestCode.AUTH_GET_ACL: get_acl,
    RequestCode.AUTH_LIST_ACL: list_acls,
}
