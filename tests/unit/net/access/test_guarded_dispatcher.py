"""A guard before the handlers: requests that it refuses reach no handler."""

import logging

import pytest
from tests.support.raw_connection import open_raw_connection, running_listener

from sparrow.net.access.audit_log import AccessRefused, AuditLog
from sparrow.net.access.guarded_dispatcher import GuardedRequestDispatcher
from sparrow.net.dispatcher import HandlerResponse, encode_response
from sparrow.wire.codes import ResponseCode
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand

AWAITING, PLAIN = 7001, 7101


@pytest.fixture
def served():
    return []


@pytest.fixture
async def wire(served):
    async def awaiting(_request, _context, call):
        served.append(call.command.body)
        return HandlerResponse(body=b"awaiting")

    def plain(command, _channel):
        served.append(command.body)
        return encode_response(command, HandlerResponse(body=b"plain"))

    def check(command, challenge, host):
        assert host == "127.0.0.1"
        if command.body == b"wrong":
            raise AccessRefused("this", "it is a test", cause="signature")
        if command.body == b"broken":
            raise ZeroDivisionError

    async with running_listener(
        GuardedRequestDispatcher(None, {AWAITING: awaiting}, {PLAIN: plain}, check=check, audit=AuditLog({AWAITING}))
    ) as server:
        async with open_raw_connection(server.address) as wire:
            yield wire


@pytest.mark.parametrize("code", [AWAITING, PLAIN])
async def test_an_accepted_request_reaches_its_handler(wire, served, code):
    answered = await wire.request(RemotingCommand(code, 1, body=b"right"))
    assert (answered.code, answered.body) == (0, b"plain" if code == PLAIN else b"awaiting")
    assert served == [b"right"]


@pytest.mark.parametrize("code", [AWAITING, PLAIN, 9999])
async def test_a_refused_request_reaches_no_handler_and_the_connection_stays_open(wire, served, code):
    answered = await wire.request(RemotingCommand(code, 7, body=b"wrong"))
    assert (answered.code, answered.opaque) == (ResponseCode.NO_PERMISSION, 7)
    assert answered.remark == "this is not permitted: it is a test"
    assert served == []
    assert (await wire.request(RemotingCommand(PLAIN, 8, body=b"right"))).code == 0


async def test_refused_one_way_requests_get_no_response(wire, served):
    wire.write(RemotingCommand(PLAIN, 1, ONE_WAY_FLAG, body=b"wrong"))
    assert (await wire.request(RemotingCommand(PLAIN, 2, body=b"right"))).opaque == 2
    assert served == [b"right"]


async def test_refusals_and_actions_are_in_the_audit_log_and_other_requests_are_not(wire, caplog):
    caplog.set_level(logging.INFO, "sparrow.audit")
    for code, body in ((PLAIN, b"right"), (AWAITING, b"right"), (PLAIN, b"wrong")):
        await wire.request(RemotingCommand(code, 1, body=body))
    lines = [(line.levelname, line.args["request"], line.args["peer"].split(":")[0]) for line in caplog.records]
    assert lines == [("INFO", f"request {AWAITING}", "127.0.0.1"), ("WARNING", f"request {PLAIN}", "127.0.0.1")]


async def test_a_failing_guard_lets_no_request_pass(wire, served):
    assert (await wire.request(RemotingCommand(PLAIN, 1, body=b"broken"))).code == ResponseCode.SYSTEM_ERROR
    assert served == []
