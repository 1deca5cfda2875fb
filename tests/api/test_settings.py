"""`GET /api/v1/settings`: what the service runs with."""

from mcp_junction.config.load import without_file
from mcp_junction.config.settings import Settings


async def test_the_settings_of_a_running_service_can_be_read(gateway):
    environ = {"MCP_RETRY_MAX_ATTEMPTS": "7"}
    served = await gateway(without_file(environ, {"page_size": 5}))
    answer = await served.client().get("/api/v1/settings")
    assert answer.status_code == 200
    found = {one["name"]: one for one in answer.json()["items"]}
    assert tuple(found) == Settings._fields
    assert answer.json()["total"] == len(found)
    assert found["retry_max_attempts"] == {
        "name": "retry_max_attempts",
        "value": 7,
        "default": 3,
        "source": "environment",
        "place": "MCP_RETRY_MAX_ATTEMPTS",
        "variable": "MCP_RETRY_MAX_ATTEMPTS",
        "allowed": "1 to 100",
        "needs_restart": True,
        "note": "",
    }
    assert found["page_size"]["source"] == "command line"
    assert (await served.client("orchestrator").get("/api/v1/settings")).status_code == 200
    for role in ("viewer", "agent"):
        assert (await served.client(role).get("/api/v1/settings")).status_code == 403
