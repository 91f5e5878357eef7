"""The numbers themselves."""

from sparrow.wire.codes import OUR_VERSION, Code, Language, Response, Version


def test_every_name_has_its_own_number():
    for numbers in (Code, Response, Language, Version):
        assert len(set(numbers)) == len(numbers.__members__)


def test_gos_16_bits_hold_every_response_code():
    assert max(Response) <= 0x7FFF


def test_versions_are_ordinals():
    assert Version.V4_9_7 == 407
    assert Version.V5_3_3 - Version.V5_3_2 == 2
    assert Version.V5_3_0 - Version.V5_2_0 == 20
    assert OUR_VERSION >= Version.V4_1_0


def test_languages_have_the_numbers_of_the_binary_header():
    assert [Language.JAVA, Language.PYTHON, Language.OTHER, Language.GO, Language.RUST] == [0, 3, 7, 9, 12]


def test_the_codes_normal_clients_need_are_known():
    assert {10, 11, 14, 15, 29, 30, 31, 34, 35, 36, 37, 38, 39, 40, 41, 42, 46, 105, 310, 320, 361} <= set(Code)
