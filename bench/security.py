"""What security costs a broker, in CPU time of its process: signatures of both kinds, and TLS.

The same sends go to three brokers in turn: one that anybody may use, one with `auth`, one with TLS. Differences and
ratios are of adjacent measurements.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from unittest.mock import patch

from _harness import ROOT, Row, folder_on_disk, is_smoke, report
from broker import BODY, IN_FLIGHT, PROPERTIES, Load, broker, cpu_of
from sparrow.model.access.token import Credentials
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand, decode, encode
from sparrow.wire.headers import Header, SendMessageV2
from sparrow.wire.signing import Challenge, sign, sign_once

sys.path.append(str(ROOT))
from tests.support.certificates import make_certificates

OPERATOR = Credentials("operator", "a secret of the benchmark")
ROUNDS = 1 if is_smoke() else 9
COUNT = 1_000 if is_smoke() else 20_000


def send_header(number: int) -> Header:
    text = PROPERTIES.format(number % 99_999, number)
    return SendMessageV2("bench", "bench", "TBW102", 4, number % 4, 0, 1_700_000_000_000, 0, text)


def frame_of(number: int, header: Header) -> bytes:
    return encode(RemotingCommand(RequestCode.SEND_MESSAGE_V2, number, ext=headers.write(header), body=BODY))


def plain_frames() -> list[bytes]:
    return [frame_of(number, send_header(number)) for number in range(COUNT)]


def rocketmq_frames() -> list[bytes]:
    return [frame_of(number, sign(send_header(number), BODY, OPERATOR)) for number in range(COUNT)]


def sparrow_frames(challenge: Challenge) -> list[bytes]:
    code = RequestCode.SEND_MESSAGE_V2
    return [frame_of(n, sign_once(code, send_header(n), BODY, OPERATOR, challenge)) for n in range(COUNT)]


@contextmanager
def running(**settings: str) -> Iterator[tuple[int, int]]:
    with ExitStack() as stack:
        folder = stack.enter_context(folder_on_disk())
        with patch.dict(os.environ, settings):  # only while it starts
            pid, port, _ = stack.enter_context(broker(folder))
        yield pid, port


def secured_load(port: int, authority: Path) -> Load:
    context = ssl.create_default_context(cafile=str(authority))
    load = Load(port)
    plain = load._socket
    load._socket = context.wrap_socket(plain, server_hostname="127.0.0.1")
    load._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return load


def cost_us(pid: int, load: Load, frames: list[bytes], in_flight: int) -> float:
    """Return the broker's CPU time per frame."""
    begun = cpu_of(pid)
    for start in range(0, len(frames), in_flight):
        load.round(frames[start : start + in_flight])
    return (cpu_of(pid) - begun) / len(frames) * 1e6


def main() -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(folder_on_disk())
        certificates = make_certificates(folder)
        tokens = json.dumps({OPERATOR.access_key: OPERATOR.secret_key})
        open_pid, open_port = stack.enter_context(running())
        auth_pid, auth_port = stack.enter_context(
            running(SPARROW_BROKER__AUTH="true", SPARROW_BROKER__ADMIN_TOKENS=tokens)
        )
        tls_pid, tls_port = stack.enter_context(
            running(
                SPARROW_BROKER__NET__TLS_CERTIFICATE=str(certificates.certificate),
                SPARROW_BROKER__NET__TLS_KEY=str(certificates.key),
            )
        )
        anybody, signed, once = Load(open_port), Load(auth_port), Load(auth_port)
        secured = secured_load(tls_port, certificates.authority)
        answer = decode(once.round([encode(RemotingCommand(RequestCode.GET_CHALLENGE, 1))]))
        challenge = Challenge(bytes(answer.body).decode())
        plain, like_rocketmq = plain_frames(), rocketmq_frames()
        for load, frames in ((anybody, plain), (signed, like_rocketmq), (secured, plain)):
            load.round(frames[:1])  # creates the topic
            load.round(frames[:500])
        rows = []
        for in_flight, words in ((IN_FLIGHT, "pipelined"), (1, "one at a time")):
            unsigned, more_rocketmq, more_once, with_tls = [], [], [], []
            count = COUNT if in_flight > 1 else COUNT // 4
            for _ in range(ROUNDS):
                fresh = sparrow_frames(challenge)
                base = cost_us(open_pid, anybody, plain[:count], in_flight)
                unsigned.append(base)
                more_rocketmq.append(cost_us(auth_pid, signed, like_rocketmq[:count], in_flight) - base)
                more_once.append(cost_us(auth_pid, once, fresh[:count], in_flight) - base)
                with_tls.append(cost_us(tls_pid, secured, plain[:count], in_flight) / base)
            goal = 12.0 if in_flight > 1 and not is_smoke() else None
            rows += [
                Row(f"send, {words}: broker CPU", median(unsigned), "µs"),
                Row(f"send, {words}, RocketMQ's signature: more", median(more_rocketmq), "µs", goal, at_most=True),
                Row(f"send, {words}, Sparrow's signature: more", median(more_once), "µs", goal, at_most=True),
                Row(f"send, {words}, TLS / without", median(with_tls), "ratio"),
            ]
    report("security", rows)


if __name__ == "__main__":
    main()
