"""What every test here needs: its connections are closed before its loop is."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.faults_http import wire


@pytest.fixture(autouse=True)
async def closed_connections() -> AsyncIterator[None]:
    yield
    for client in wire.OPEN:
        client.close()
    wire.OPEN.clear()
    for _ in range(3):  # a transport takes turns of the loop to close
        await asyncio.sleep(0)
