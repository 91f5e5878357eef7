"""Suites that several engines share are tests too: their asserts are to explain themselves."""

import pytest

pytest.register_assert_rewrite("tests.integration.conformance", "tests.support")
