"""Consumer groups as operators see them: made and changed, listed, dropped."""

from __future__ import annotations

from sparrow.broker.catalog.groups import SYSTEM_GROUPS
from sparrow.broker.context import Broker
from sparrow.model.errors import Refused
from sparrow.model.topic import Group, validate_group_name
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.bodies import GroupConfig, GroupConfigList, GroupTable
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import DeleteGroup, EmptyHeader, GetGroupConfig, ListGroups, UpdateGroupForbidden

RETRY_QUEUES_MAX = 1024
RETRIES_MAX = 65_536
UNLIMITED_RETRIES = -1


async def put_group(_request: EmptyHeader, broker: Broker, call: RequestContext) -> EmptyHeader:
    """Create a group or change it."""
    await broker.groups.put(_checked(call.body(GroupConfig)))
    return EmptyHeader()


async def put_groups(_request: EmptyHeader, broker: Broker, call: RequestContext) -> EmptyHeader:
    """The same for a list; nothing is changed unless all of it can be."""
    wanted = call.body(GroupConfigList).group_config_list
    if not wanted:
        raise Refused("the list names no group")
    for group in [_checked(config) for config in wanted]:
        await broker.groups.put(group)
    return EmptyHeader()


def _checked(config: GroupConfig) -> Group:
    """The group as it is to be, or `Refused`."""
    name = validate_group_name(config.group_name)
    if not 0 <= config.retry_queue_nums <= RETRY_QUEUES_MAX:
        raise Refused(
            f"group {name!r} cannot have {config.retry_queue_nums} retry queues: 0 to {RETRY_QUEUES_MAX} are possible"
        )
    if not UNLIMITED_RETRIES <= config.retry_max_times <= RETRIES_MAX:
        raise Refused(
            f"group {name!r} cannot have {config.retry_max_times} retries: 0 to {RETRIES_MAX} are possible, "
            f"and {UNLIMITED_RETRIES} for no limit"
        )
    return config.group()


async def get_group(request: GetGroupConfig, broker: Broker, _call: RequestContext) -> HandlerResponse:
    return HandlerResponse.of(GroupConfig.of(broker.groups[request.group]))


async def list_groups(_request: ListGroups, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Always all of them: without a total in the answer, 5.3's tools do not ask for a second page."""
    table = {group.name: GroupConfig.of(group) for group in broker.groups}
    return HandlerResponse.of(GroupTable(table, broker.groups.version))


async def delete_group(request: DeleteGroup, broker: Broker, _call: RequestContext) -> EmptyHeader:
    """Offsets stay unless they are to go too: made again, the group goes on where it was, as RocketMQ's do."""
    name = validate_group_name(request.group)
    if name in SYSTEM_GROUPS:
        raise Refused(f"group {name!r} is one of the broker's own: it stays")
    broker.counters.forget_group(name)
    await broker.groups.delete(name, keeps_offsets=not (request.clean_offsets or request.remove_offsets))
    return EmptyHeader()


async def forbid_group(request: UpdateGroupForbidden, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Pulls look at the group and at the topic, not at the pair of them: a table of pairs would be a false promise."""
    return HandlerResponse(
        code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        remark=(
            f"group {request.group!r} cannot be forbidden to read topic {request.topic!r} alone: "
            "switch consuming off for the group, or take the topic's read permission"
        ),
    )


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: put_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: put_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: get_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: list_groups,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: forbid_group,
}
