"""A server as it is stored and as it is connected to."""

import pytest

from mcp_junction.config.settings import DEFAULTS
from mcp_junction.registry.definitions import definition_for
from mcp_junction.store.records import ServerRecord


@pytest.mark.parametrize("name", ["PGPASSWORD", "JUNCTION_STORE", "MCP_CREDENTIAL_KEY"])
def test_a_stored_server_is_not_given_our_own_variables(name):
    config = {"command": "run", "env": {"A": f"${{{name}}}"}}
    record = ServerRecord(id="1", name="s", transport_type="STDIO", connection_config=config)
    found = definition_for(record, {name: "canary"}, DEFAULTS)
    assert found.fault == f"$.connection_config.env.A: the environment variable {name} is not set"
    assert "canary" not in str(tuple(found))


@pytest.mark.req("J-ENV-PLATFORM")
async def test_a_missing_variable_is_an_error_of_its_server_alone(platform, toolbox):
    server = await toolbox()
    bad = {"url": server.url, "headers": {"Authorization": "Bearer ${TEST_UNSET}"}}
    run = await platform({"bad": bad, "good": {"url": server.url}})
    await run.until("good", "CONNECTED")
    await run.until("bad", "ERROR")
    message = run.registry.find("bad").error_message
    assert "$.mcpServers.bad.headers.Authorization" in message
    assert "the environment variable TEST_UNSET is not set" in message
    assert run.listed() == ["good.echo"]
