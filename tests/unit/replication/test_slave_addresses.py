"""Broker ids of slaves: one process has one, until it is silent or leaves."""

import pytest

from sparrow.model.errors import Refused
from sparrow.replication.roles.slave_addresses import ANNOUNCED_S, SLAVES_MAX, SlaveAddresses


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_an_id_belongs_to_the_process_that_announced_it_until_it_is_silent() -> None:
    clock = Clock()
    slaves = SlaveAddresses(clock)
    assert slaves.announce(1, "a:1") is None
    assert slaves.announce(1, "b:1") == "a:1"
    assert slaves.announce(2, "b:1") is None
    clock.now_s += ANNOUNCED_S - 1
    assert slaves.announce(1, "a:1") is None
    clock.now_s += ANNOUNCED_S - 1
    assert slaves.announce(1, "b:1") == "a:1"
    clock.now_s += 1
    assert slaves.announce(1, "b:1") is None
    assert slaves.announce(1, "a:1") == "b:1"


def test_an_id_is_free_when_its_process_has_left_or_is_gone() -> None:
    slaves = SlaveAddresses(Clock())
    slaves.announce(1, "a:1")
    slaves.withdraw(1, "b:1")
    assert slaves.announce(1, "b:1") == "a:1"
    slaves.withdraw(1, "a:1")
    assert slaves.announce(1, "b:1") is None
    assert slaves.announce(1, "c:1", replacing="b:1") is None
    assert slaves.announce(1, "b:1", replacing="a:1") == "c:1"


@pytest.mark.parametrize("broker_id", [0, -1, SLAVES_MAX + 1, 1 << 31])
def test_ids_that_no_slave_can_have_are_refused(broker_id: int) -> None:
    with pytest.raises(Refused, match="--broker-id"):
        SlaveAddresses(Clock()).announce(broker_id, "a:1")
