"""The store time is read from a record without decoding the rest."""

import pytest

from sparrow.broker.query.store_time import store_ms_of
from sparrow.model.message import Host, StoredMessage
from sparrow.wire import record

IPV4, IPV6 = Host(b"\x0a\0\0\x01", 5), Host(bytes(range(16)), 5)


@pytest.mark.parametrize("born_host", [IPV4, IPV6])
@pytest.mark.parametrize("store_host", [IPV4, IPV6])
def test_the_store_time_is_found_for_ipv4_and_ipv6_addresses(born_host, store_host):
    message = StoredMessage(
        topic="T", body=b"x", born_ms=1, store_ms=1_700_000_000_123, born_host=born_host, store_host=store_host
    )
    assert store_ms_of(record.encode_message(message)) == 1_700_000_000_123
