"""What each request needs of the ACL of a user: one of some actions, on each resource that it uses.

1. Topics of groups (retries, dead letters) are used as their group, whatever entries for topics say.
2. Requests that concern the whole broker use the cluster. Those that name nothing need the action on any resource.
3. Tokens, users and ACLs are administered by Super users only: who may change an ACL can give himself everything.
   Requests that are not in the table of requirements are for Super users, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

from sparrow.broker.access.requirements import EVERYTHING, READ_CODES, REQUIREMENTS, NamedUse, Requirement
from sparrow.model.access.acl import Acl
from sparrow.model.access.acl_entry import AclAction, ResourceKind
from sparrow.model.access.permissions import GROUP_TOPIC_PREFIXES, TokenAction, split_group_topic
from sparrow.model.access.token import EVERY_NAME, TOKEN_NAME_CHARS_MAX
from sparrow.model.protocol import TOOLS_GROUP, TRACE_TOPIC
from sparrow.wire.codes import RequestCode

SUPER_CODES = frozenset(
    {
        RequestCode.ISSUE_TOKEN,
        RequestCode.CHANGE_TOKEN,
        RequestCode.LIST_TOKENS,
        RequestCode.REVOKE_TOKEN,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_GET_USER,
        RequestCode.AUTH_LIST_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
        RequestCode.AUTH_GET_ACL,
        RequestCode.AUTH_LIST_ACL,
    }
)
_SUB, _PUB = frozenset({AclAction.SUB}), frozenset({AclAction.PUB})
_SUB_OR_GET = frozenset({AclAction.SUB, AclAction.GET})
_BOUNDS = frozenset({AclAction.PUB, AclAction.SUB, AclAction.GET})
"""RocketMQ demands `Get`, which producers and consumers that ask for bounds would then need, too."""
_CREATE, _DELETE = frozenset({AclAction.CREATE}), frozenset({AclAction.DELETE})
_LIST = frozenset({AclAction.LIST, AclAction.GET})
_GET, _UPDATE = frozenset({AclAction.GET}), frozenset({AclAction.UPDATE})

_ACTIONS_BY_CODE: dict[int, frozenset[AclAction]] = {
    RequestCode.HEART_BEAT: _SUB,  # only its consumer groups are named
    RequestCode.UNREGISTER_CLIENT: _SUB,
    RequestCode.QUERY_MESSAGE: _SUB_OR_GET,
    RequestCode.QUERY_CONSUMER_OFFSET: _SUB_OR_GET,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _SUB_OR_GET,
    RequestCode.POLLING_INFO: _SUB_OR_GET,
    RequestCode.UPDATE_CONSUMER_OFFSET: frozenset({AclAction.SUB, AclAction.UPDATE}),
    RequestCode.GET_MAX_OFFSET: _BOUNDS,
    RequestCode.GET_MIN_OFFSET: _BOUNDS,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _BOUNDS,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _BOUNDS,
    RequestCode.QUERY_QUEUE_BOUNDS: _BOUNDS,
    RequestCode.UPDATE_AND_CREATE_TOPIC: _CREATE,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _CREATE,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: _CREATE,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _CREATE,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _CREATE,
    RequestCode.DELETE_TOPIC_IN_BROKER: _DELETE,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _DELETE,
    RequestCode.GET_ALL_TOPIC_CONFIG: _LIST,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _LIST,
}
_ACTIONS_BY_TOKEN_ACTION = {TokenAction.PUBLISH: _PUB, TokenAction.SUBSCRIBE: _SUB}


def acl_actions(code: int, actions: Iterable[TokenAction]) -> frozenset[AclAction]:
    """Return the actions of which a request needs one; `actions` are those of a token of a type."""
    found = _ACTIONS_BY_CODE.get(code)
    if found is not None:
        return found
    if TokenAction.ADMINISTER in actions:
        return _GET if code in READ_CODES else _UPDATE
    return frozenset().union(*(_ACTIONS_BY_TOKEN_ACTION[action] for action in actions))


class ResourceUse(NamedTuple):
    """A resource that a request uses, and the actions of which it needs one."""

    kind: ResourceKind
    name: str
    actions: Set[AclAction]

    def is_allowed(self, acl: Acl, host: str) -> bool:
        """Return whether an ACL allows it to a peer."""
        return acl.allows(self.kind, self.name, self.actions, host)

    def __str__(self) -> str:
        return f"{' or '.join(sorted(self.actions))} on {self.kind}:{self.name[:TOKEN_NAME_CHARS_MAX]}"


def find_denied_use(
    acl: Acl, code: int, need: Requirement, names: Iterable[NamedUse], host: str, cluster: str
) -> ResourceUse | None:
    """Return the first resource whose use an ACL does not allow; None if it allows the request."""
    actions = acl_actions(code, need.actions)
    if need is EVERYTHING:
        use = ResourceUse("Cluster", cluster, actions)
        return None if use.is_allowed(acl, host) else use
    for topic, group in names:
        if topic is None and group is None and not acl.allows_anything(actions, host):
            return ResourceUse("Topic", EVERY_NAME, actions)
        if need.sends:
            if topic == TRACE_TOPIC:
                continue
            actions = _SUB if (topic or "").startswith(GROUP_TOPIC_PREFIXES) else _PUB
        denied = find_denied_name(acl, actions, NamedUse(topic, group), host)
        if denied is not None:
            return denied
    return None


def find_denied_name(acl: Acl, actions: Set[AclAction], use: NamedUse, host: str) -> ResourceUse | None:
    """Return the topic or the group of which an ACL does not allow the use; None if it allows both."""
    topic, group = use
    if group is not None and group != TOOLS_GROUP:
        by_group = ResourceUse("Group", group, actions)
        if not by_group.is_allowed(acl, host):
            return by_group
    if topic is None:
        return None
    if not topic.startswith(GROUP_TOPIC_PREFIXES):
        by_topic = ResourceUse("Topic", topic, actions)
        return None if by_topic.is_allowed(acl, host) else by_topic
    owner, topics = split_group_topic(topic, group)
    by_owner = ResourceUse("Group", owner, actions)
    # Producers do not send to the topics of groups, whatever entries allow.
    if actions != _PUB and (
        by_owner.is_allowed(acl, host)
        or any(ResourceUse("Topic", name, actions).is_allowed(acl, host) for name in topics)
    ):
        return None
    return by_owner


def needs_super_user(code: int) -> bool:
    """Return whether a request is for Super users only."""
    return code in SUPER_CODES or code not in REQUIREMENTS
