"""Admin requests for consumer groups: create, change, list and delete."""

from __future__ import annotations

import asyncio

from sparrow.broker.catalog.groups import SYSTEM_GROUPS
from sparrow.broker.context import Broker
from sparrow.model.errors import Refused
from sparrow.model.topic import Group, validate_group_name
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.bodies import DataVersion, GroupConfig, GroupConfigList, GroupTable
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import DeleteGroup, EmptyHeader, GetGroupConfig, ListGroups, UpdateGroupForbidden

RETRY_QUEUES_MAX = 1024
RETRIES_MAX = 65_536
UNLIMITED_RETRIES = -1


async def put_group(_request: EmptyHeader, broker: Broker, call: RequestContext) -> EmptyHeader:
    """Create or change a group."""
    with broker.events.group_creation():
        await broker.groups.put(_checked(call.body(GroupConfig)))
    return EmptyHeader()


async def put_groups(_request: EmptyHeader, broker: Broker, call: RequestContext) -> EmptyHeader:
    """Create or change a list of groups, or none of them if one is invalid."""
    wanted = call.body(GroupConfigList).group_config_list
    if not wanted:
        raise Refused("the list of groups is empty")
    for group in [_checked(config) for config in wanted]:
        with broker.events.group_creation():
            await broker.groups.put(group)
    return EmptyHeader()


def _checked(config: GroupConfig) -> Group:
    """Return the validated group, or raise `Refused`."""
    name = validate_group_name(config.group_name)
    if not 0 <= config.retry_queue_nums <= RETRY_QUEUES_MAX:
        raise Refused(f"group {name!r} cannot have {config.retry_queue_nums} retry queues: use 0 to {RETRY_QUEUES_MAX}")
    if not UNLIMITED_RETRIES <= config.retry_max_times <= RETRIES_MAX:
        raise Refused(
            f"group {name!r} cannot have {config.retry_max_times} retries: use 0 to {RETRIES_MAX}, or "
            f"{UNLIMITED_RETRIES} for no limit"
        )
    return config.group()


async def get_group(request: GetGroupConfig, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return a group. A new one is created: RocketMQ's proxy asks for the group of a consumer before it serves it."""
    return HandlerResponse.of(GroupConfig.of(await broker.groups.get_or_create(request.group)))


async def list_groups(_request: ListGroups, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Return all groups at once.

    The answer has no total, so 5.3's tools do not request a second page.
    """
    async with broker.listing_turn:
        # In a thread: with thousands of groups, it takes long.
        return await asyncio.to_thread(_group_table, list(broker.groups), broker.groups.version)


def _group_table(groups: list[Group], version: DataVersion) -> HandlerResponse:
    return HandlerResponse.of(GroupTable({group.name: GroupConfig.of(group) for group in groups}, version))


async def delete_group(request: DeleteGroup, broker: Broker, _call: RequestContext) -> EmptyHeader:
    """Delete a group.

    Its offsets are kept unless the request says otherwise: a group that is created again continues, as in RocketMQ.
    """
    name = validate_group_name(request.group)
    if name in SYSTEM_GROUPS:
        raise Refused(f"group {name!r} is a system group and cannot be deleted")
    broker.counters.forget_group(name)
    broker.events.forget_group(name)
    broker.positions.forget_group(name)
    await broker.groups.delete(name, keeps_offsets=not (request.clean_offsets or request.remove_offsets))
    return EmptyHeader()


async def forbid_group(request: UpdateGroupForbidden, broker: Broker, _call: RequestContext) -> HandlerResponse:
    """Refuse to forbid a group one topic.

    Pulls check the group and the topic, not the pair, so such a rule would have no effect.
    """
    return HandlerResponse(
        code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        remark=(
            f"group {request.group!r} cannot be forbidden topic {request.topic!r} only: disable consuming "
            "for the group, or remove the topic's read permission"
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
