"""Rewrite the asserts of the conformance suites that several engines share, as pytest does in test modules."""

import pytest

pytest.register_assert_rewrite("tests.integration.conformance", "tests.support")
