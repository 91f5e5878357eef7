"""Rings of samples."""

from sparrow.console.sampler import Ring


def test_a_ring_keeps_the_newest_values_the_oldest_first() -> None:
    ring = Ring(3)
    for sample in range(5):
        ring.put(sample, sample * 10.0)
    assert ring.values(4) == [20.0, 30.0, 40.0]


def test_samples_without_a_value_are_empty() -> None:
    ring = Ring(4)
    ring.put(0, 1.0)
    ring.put(2, 3.0)
    assert ring.values(2) == [1.0, None, 3.0]
    assert ring.values(3) == [1.0, None, 3.0, None]  # the newest sample has no value yet
    ring.put(9, 9.0)
    assert ring.values(9) == [None, None, None, 9.0]


def test_a_ring_that_began_late_is_empty_before() -> None:
    ring = Ring(4)
    ring.put(2, 5.0)
    assert ring.values(3) == [None, None, 5.0, None]
