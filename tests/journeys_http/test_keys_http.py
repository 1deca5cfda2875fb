"""A key in the SDK's client: the right one opens the endpoint, another or none does not."""

import json

import httpx2
import pytest
from mcp import MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from tests.journeys.client import BOUND
from tests.journeys_http.sdk import connected, listed, said
from tests.journeys_http.stack import serving
from tests.plugin_journeys import PROGRAM, own_environment

pytestmark = pytest.mark.peers


@pytest.fixture
def guarded(installed, tmp_path, program):
    """A gateway that asks for a key, and a key."""
    config = tmp_path / "mcp.json"
    servers = {"child": installed.entries()["everything"]}
    config.write_text(json.dumps({"mcpServers": servers}), "utf-8")
    data = tmp_path / "data"
    made = program("keys", "create", "--role", "agent", "--grant", "*", "--data-dir", data)
    assert made.returncode == 0, made.stderr
    with serving(config, "--require-key") as url:
        yield url, made.stdout.strip()


async def test_only_the_right_key_opens_the_endpoint(guarded):
    url, key = guarded
    for headers in ({}, {"Authorization": f"Bearer {key[:-1]}?"}):
        statuses = []

        async def on_response(response, statuses=statuses):
            statuses.append(response.status_code)

        hooks = {"response": [on_response]}
        async with httpx2.AsyncClient(headers=headers, event_hooks=hooks, timeout=BOUND) as http:
            refused = pytest.RaisesExc(MCPError, match="a key is needed")
            with pytest.RaisesGroup(refused, flatten_subgroups=True):
                async with connected(streamable_http_client(url, http_client=http)):
                    pass
        assert statuses == [401]

    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=BOUND) as http,
        connected(streamable_http_client(url, http_client=http)) as (client, _),
    ):
        assert await said(client, "child.echo", {"message": "in"}) == "Echo: in"


@pytest.mark.req("J-REMOTE")
async def test_a_remote_entry_sends_its_headers(guarded, tmp_path):
    """The guarded gateway is the remote server of another one, in stdio mode."""
    url, key = guarded
    config = tmp_path / "outer.json"
    entry = {"type": "http", "url": url, "headers": {"Authorization": f"Bearer {key}"}}
    config.write_text(json.dumps({"mcpServers": {"far": entry}}), "utf-8")
    arguments = ["--config", str(config)]
    program = StdioServerParameters(command=str(PROGRAM), args=arguments, env=own_environment())
    async with connected(program) as (client, _):
        assert "far:child.echo" in await listed(client)
        assert await said(client, "far:child.echo", {"message": "in"}) == "Echo: in"
