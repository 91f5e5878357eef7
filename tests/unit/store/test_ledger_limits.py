"""Valid scopes and numbers of the ledger."""

import pytest

from sparrow.model.errors import Refused
from sparrow.store.ledger_limits import LEDGER_NUMBER_MAX, SCOPE_CHARS_MAX, checked_number, checked_scope


@pytest.mark.parametrize("scope", ["q", "a b/c:7", "麻雀", "x" * SCOPE_CHARS_MAX])
def test_a_scope_is_text_of_limited_length(scope):
    assert checked_scope(scope) == scope


@pytest.mark.parametrize("scope", ["", "x" * (SCOPE_CHARS_MAX + 1), "a\nb", "a\0", "\ud800"])
def test_an_invisible_or_too_long_scope_is_refused(scope):
    with pytest.raises(Refused):
        checked_scope(scope)


def test_numbers_are_limited_and_start_at_0():
    assert [checked_number(number) for number in (0, LEDGER_NUMBER_MAX)] == [0, LEDGER_NUMBER_MAX]
    for number in (-1, LEDGER_NUMBER_MAX + 1):
        with pytest.raises(Refused):
            checked_number(number)
