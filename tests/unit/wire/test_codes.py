"""Request codes, response codes and versions."""

from sparrow.wire.codes import ADVERTISED_VERSION, Language, RequestCode, ResponseCode, RocketMQVersion


def test_every_name_has_a_unique_number():
    for numbers in (RequestCode, ResponseCode, Language, RocketMQVersion):
        assert len(set(numbers)) == len(numbers.__members__)


def test_every_response_code_fits_the_16_bits_of_go():
    assert max(ResponseCode) <= 0x7FFF


def test_versions_are_ordinals():
    assert RocketMQVersion.V4_9_7 == 407
    assert RocketMQVersion.V5_3_3 - RocketMQVersion.V5_3_2 == 2
    assert RocketMQVersion.V5_3_0 - RocketMQVersion.V5_2_0 == 20
    assert ADVERTISED_VERSION >= RocketMQVersion.V4_1_0


def test_languages_have_the_numbers_of_the_binary_header():
    assert [Language.JAVA, Language.PYTHON, Language.OTHER, Language.GO, Language.RUST] == [0, 3, 7, 9, 12]


def test_the_codes_of_ordinary_clients_are_defined():
    assert {10, 11, 14, 15, 29, 30, 31, 34, 35, 36, 37, 38, 39, 40, 41, 42, 46, 105, 310, 320, 361} <= set(RequestCode)
