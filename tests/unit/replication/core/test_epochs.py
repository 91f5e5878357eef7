"""Leader epochs of a log, compared with a list that has one epoch for each byte."""

from hypothesis import given
from hypothesis import strategies as st

from sparrow.replication.core.epochs import EpochHistory, EpochStart

FIRST = 5


def history_of(epochs: list[int]) -> EpochHistory:
    """Return the history of a log whose bytes from `FIRST` on have these epochs."""
    starts = [
        EpochStart(epoch, FIRST + position)
        for position, epoch in enumerate(epochs)
        if position == 0 or epochs[position - 1] != epoch
    ]
    return EpochHistory(starts)


epochs_of_bytes = st.lists(st.integers(1, 6), max_size=20).map(sorted)


@given(epochs_of_bytes, st.integers(0, 30))
def test_the_epoch_before_an_offset_is_that_of_the_byte_there(epochs: list[int], offset: int) -> None:
    position = min(offset - FIRST, len(epochs))
    assert history_of(epochs).epoch_before(offset) == (epochs[position - 1] if position > 0 else 0)


@given(epochs_of_bytes, st.integers(1, 7))
def test_an_epoch_ends_behind_its_last_byte(epochs: list[int], epoch: int) -> None:
    history, end = history_of(epochs), FIRST + len(epochs)
    later = [position for position, value in enumerate(epochs) if value > epoch]
    assert history.end_of(epoch, end) == (FIRST + later[0] if later else end)
    assert history.largest_up_to(epoch) == max((value for value in epochs if value <= epoch), default=0)


@given(epochs_of_bytes, st.integers(0, 30))
def test_truncation_forgets_the_epochs_behind_the_end(epochs: list[int], end: int) -> None:
    history = history_of(epochs)
    history.truncate(end)
    assert history.starts == history_of(epochs[: max(0, end - FIRST)]).starts


@given(epochs_of_bytes, st.integers(0, 30))
def test_the_next_start_is_the_first_byte_of_another_epoch(epochs: list[int], offset: int) -> None:
    starts = [start for _, start in history_of(epochs).starts if start > offset]
    assert history_of(epochs).next_start(offset) == (starts[0] if starts else None)
