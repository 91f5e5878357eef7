"""What a ledger takes for a scope and a number."""

import pytest

from sparrow.model.errors import Refused
from sparrow.store.ledger_limits import LEDGER_NUMBER_MAX, SCOPE_CHARS_MAX, checked_number, checked_scope


@pytest.mark.parametrize("scope", ["q", "a b/c:7", "麻雀", "x" * SCOPE_CHARS_MAX])
def test_a_scope_is_any_text_of_some_length(scope):
    assert checked_scope(scope) == scope


@pytest.mark.parametrize("scope", ["", "x" * (SCOPE_CHARS_MAX + 1), "a\nb", "a\0", "\ud800"])
def test_what_cannot_be_seen_or_kept_is_no_scope(scope):
    with pytest.raises(Refused):
        checked_scope(scope)


def test_numbers_count_from_0():
    assert [checked_number(number) for number in (0, LEDGER_NUMBER_MAX)] == [0, LEDGER_NUMBER_MAX]
    for number in (-1, LEDGER_NUMBER_MAX + 1):
        with pytest.raises(Refused):
            checked_number(number)
