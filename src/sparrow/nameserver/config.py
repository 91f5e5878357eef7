"""Handlers of the KV configuration, and of the name server's own settings in RocketMQ's format."""

from __future__ import annotations

from sparrow import clock
from sparrow.model.errors import BadRequest, NotPermitted
from sparrow.nameserver.context import NameServerContext
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.bodies import KvTable
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import EmptyHeader, GetKvResponse, KvEntryRequest, ListKv, PutKv

ORDER_MESSAGE_ENABLE = "orderMessageEnable"
BROKER_NAME_CONFLICTS = "brokerNameConflicts"
"""Sparrow's own: `name:id=address,address`, separated by `;`."""


async def put(request: PutKv, context: NameServerContext, _: RequestContext) -> EmptyHeader:
    await context.kv.put(request.namespace, request.key, request.value)
    return EmptyHeader()


async def get(
    request: KvEntryRequest, context: NameServerContext, _: RequestContext
) -> GetKvResponse | HandlerResponse:
    value = context.kv.get(request.namespace, request.key)
    if value is not None:
        return GetKvResponse(value)
    return _not_found(f"No config item, Namespace: {request.namespace} Key: {request.key}")


async def delete(request: KvEntryRequest, context: NameServerContext, _: RequestContext) -> EmptyHeader:
    await context.kv.delete(request.namespace, request.key)
    return EmptyHeader()


async def list_namespace(request: ListKv, context: NameServerContext, _: RequestContext) -> HandlerResponse:
    table = context.kv.table(request.namespace)
    if table is not None:
        return HandlerResponse.of(KvTable(dict(table)))
    return _not_found(f"No config item, Namespace: {request.namespace}")


def _not_found(remark: str) -> HandlerResponse:
    return HandlerResponse(code=ResponseCode.QUERY_NOT_FOUND, remark=remark)


async def show_settings(_: EmptyHeader, context: NameServerContext, __: RequestContext) -> HandlerResponse:
    """Return the settings as Java properties, under RocketMQ's names where it has one."""
    settings = context.settings
    conflicts = context.routes.conflicts.current().items()
    properties = {
        "bindAddress": settings.host,
        BROKER_NAME_CONFLICTS: ";".join(f"{name}:{number}={','.join(each)}" for (name, number), each in conflicts),
        "brokerSilenceMillis": settings.broker_timeout_ms,
        "currentTimeMillis": clock.now_ms(),  # Sparrow's own name: clocks that differ are found by it
        "listenPort": context.address.port,
        ORDER_MESSAGE_ENABLE: str(context.is_order_message_enabled).lower(),
        "scanNotActiveBrokerInterval": settings.scan_interval_ms,
    }
    return HandlerResponse(body="".join(f"{name}={value}\n" for name, value in properties.items()).encode())


async def change_settings(_: EmptyHeader, context: NameServerContext, call: RequestContext) -> EmptyHeader:
    """Change settings at run time: all of the given ones, or none."""
    changes = _parse_properties(call.command.body)
    fixed = changes.keys() - {ORDER_MESSAGE_ENABLE}
    if fixed:
        why = f"only {ORDER_MESSAGE_ENABLE} can be changed; for the others, change sparrow.toml and restart"
        raise NotPermitted(f"changing {', '.join(sorted(fixed))} while the name server runs", why)
    if ORDER_MESSAGE_ENABLE in changes:
        context.is_order_message_enabled = changes[ORDER_MESSAGE_ENABLE].lower() == "true"
    return EmptyHeader()


def _parse_properties(body: bytes | memoryview) -> dict[str, str]:
    """Parse `name=value` lines; `#` and `!` start a comment."""
    try:
        lines = str(body, "utf-8").splitlines()
    except UnicodeDecodeError as cause:
        raise BadRequest("the configuration", "body", "is not UTF-8") from cause
    found = {}
    for line in map(str.strip, lines):
        if line and not line.startswith(("#", "!")):
            name, equals, value = line.partition("=")
            if not equals:
                raise BadRequest("the configuration", "body", f"has a line without '=': {line[:80]!r}")
            found[name.strip()] = value.strip()
    return found


HANDLERS: dict[int, RequestHandler[NameServerContext]] = {
    RequestCode.PUT_KV_CONFIG: put,
    RequestCode.GET_KV_CONFIG: get,
    RequestCode.DELETE_KV_CONFIG: delete,
    RequestCode.GET_KVLIST_BY_NAMESPACE: list_namespace,
    RequestCode.GET_NAMESRV_CONFIG: show_settings,
    RequestCode.UPDATE_NAMESRV_CONFIG: change_settings,
}
