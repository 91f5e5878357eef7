"""The KV configuration, and the name server's own settings as RocketMQ's tools see them."""

from __future__ import annotations

from sparrow.model.errors import BadRequest, NotPermitted
from sparrow.nameserver.context import Naming
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.bodies import KvTable
from sparrow.wire.codes import Code, Response
from sparrow.wire.headers import AskKv, Done, KvFound, ListKv, PutKv

ORDERED_ROUTES = "orderMessageEnable"


async def put(request: PutKv, naming: Naming, _: RequestContext) -> Done:
    await naming.kv.put(request.namespace, request.key, request.value)
    return Done()


async def get(request: AskKv, naming: Naming, _: RequestContext) -> KvFound | HandlerResponse:
    value = naming.kv.get(request.namespace, request.key)
    if value is not None:
        return KvFound(value)
    return _not_found(f"No config item, Namespace: {request.namespace} Key: {request.key}")


async def delete(request: AskKv, naming: Naming, _: RequestContext) -> Done:
    await naming.kv.delete(request.namespace, request.key)
    return Done()


async def list_namespace(request: ListKv, naming: Naming, _: RequestContext) -> HandlerResponse:
    table = naming.kv.table(request.namespace)
    if table is not None:
        return HandlerResponse.of(KvTable(dict(table)))
    return _not_found(f"No config item, Namespace: {request.namespace}")


def _not_found(remark: str) -> HandlerResponse:
    return HandlerResponse(code=Response.QUERY_NOT_FOUND, remark=remark)


async def show_settings(_: Done, naming: Naming, __: RequestContext) -> HandlerResponse:
    """As Java properties, under RocketMQ's names where it has one."""
    settings = naming.settings
    shown = {
        "bindAddress": settings.host,
        "brokerSilenceMillis": settings.broker_silence_ms,
        "listenPort": naming.address.port,
        ORDERED_ROUTES: str(naming.has_ordered_routes).lower(),
        "scanNotActiveBrokerInterval": settings.scan_interval_ms,
    }
    return HandlerResponse(body="".join(f"{name}={value}\n" for name, value in shown.items()).encode())


async def change_settings(_: Done, naming: Naming, call: RequestContext) -> Done:
    """Only what can change while we run: all that was asked for, or nothing."""
    wanted = _properties(call.command.body)
    fixed = wanted.keys() - {ORDERED_ROUTES}
    if fixed:
        why = f"only {ORDERED_ROUTES} can change; for the rest, change the settings and restart"
        raise NotPermitted(f"changing {', '.join(sorted(fixed))} while the name server runs", why)
    if ORDERED_ROUTES in wanted:
        naming.has_ordered_routes = wanted[ORDERED_ROUTES].lower() == "true"
    return Done()


def _properties(body: bytes | memoryview) -> dict[str, str]:
    """`name=value` lines; `#` opens a comment."""
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


HANDLERS: dict[int, RequestHandler[Naming]] = {
    Code.PUT_KV_CONFIG: put,
    Code.GET_KV_CONFIG: get,
    Code.DELETE_KV_CONFIG: delete,
    Code.GET_KVLIST_BY_NAMESPACE: list_namespace,
    Code.GET_NAMESRV_CONFIG: show_settings,
    Code.UPDATE_NAMESRV_CONFIG: change_settings,
}
