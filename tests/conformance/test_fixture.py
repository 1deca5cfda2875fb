"""The fixture by itself: with `--era` it is a server that knows one era only."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from mcp import Client, MCPError, StdioServerParameters
from tests.conformance.processes import fixture, fixture_entry

OLD, NEW, REFUSED = "2025-11-25", "2026-07-28", "refused"
BOUND = 30.0

Server = str | StdioServerParameters


@contextmanager
def serving(transport: str, era: str) -> Iterator[Server]:
    if transport == "stdio":
        yield StdioServerParameters(**fixture_entry(era))
    else:
        with fixture(era) as url:
            yield url


async def version_spoken(server: Server, mode: str) -> str:
    """The version that a client ends up with, or that it was refused."""
    try:
        async with Client(server, mode=mode) as client:
            await client.list_tools()
            return client.protocol_version
    except MCPError:
        return REFUSED
    except ExceptionGroup as group:
        if group.split(MCPError)[1] is not None:
            raise  # something else went wrong
        return REFUSED


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize(
    ("era", "with_handshake", "finding_out", "without_handshake"),
    [("old", OLD, OLD, REFUSED), ("new", REFUSED, NEW, NEW), ("both", OLD, NEW, NEW)],
)
async def test_a_server_of_one_era_refuses_the_other(
    transport: str, era: str, with_handshake: str, finding_out: str, without_handshake: str
):
    with serving(transport, era) as server:
        async with asyncio.timeout(BOUND):
            spoken = await asyncio.gather(
                version_spoken(server, "legacy"),
                version_spoken(server, "auto"),
                version_spoken(server, NEW),
            )
    assert spoken == [with_handshake, finding_out, without_handshake]
