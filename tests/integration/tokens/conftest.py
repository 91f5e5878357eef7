"""A platform that requires tokens, and its administrator."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.admin_token import ADMIN, AUTH
from tests.support.platforms import running_platform

from sparrow.cli.server.platform import Platform
from sparrow.client.aio import Admin


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[Platform]:
    async with running_platform(tmp_path, **AUTH) as running:
        yield running


@pytest.fixture
async def admin(platform: Platform) -> AsyncIterator[Admin]:
    async with Admin(platform.name_servers, credentials=ADMIN) as admin:
        yield admin
