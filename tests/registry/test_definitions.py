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
