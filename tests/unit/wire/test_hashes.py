"""Java's string hash."""

import pytest

from sparrow.wire.hashes import index_hash, java_hash, tags_code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("Aa", 2112),
        ("BB", 2112),
        ("标签", 857175),
        ("*", 42),
        ("😀", 1772899),
        ("TopicTest#ORDER_1", -1111208162),
        ("polygenelubricants", -2147483648),
    ],
)
def test_hash_code_over_utf16_units(text, code):
    assert java_hash(text) == code


def test_a_missing_tag_hashes_to_zero():
    assert tags_code(None) == tags_code("") == 0
    assert tags_code("TagA") == 2598919


def test_the_index_hash_is_never_negative():
    assert index_hash("TopicTest", "ORDER_1") == 1111208162
    assert java_hash("polygenelubricants") == -(2**31)
    assert index_hash("a", "b") == java_hash("a#b")
