"""How servers stand, as REST shows it: four facts, none of which follows from another."""

import asyncio

import pytest
from tests.plugin_rest import SERVERS, registration
from tests.registry.toolbox import Toolbox

FACTS = ("status", "enabled", "reachable", "authenticated", "healthy")


async def facts(served, name: str) -> tuple:
    shown = (await served.client("viewer").get(SERVERS)).json()["items"]
    found = next(one for one in shown if one["name"] == name)
    health = (await served.client("viewer").get("/api/v1/aggregator/health")).json()["servers"]
    told = next(one for one in health if one["name"] == name)
    assert {key: found[key] for key in told}.keys() == told.keys()
    return tuple(found[fact] for fact in FACTS)


async def until_facts(served, name: str, *wanted: object) -> None:
    async with asyncio.timeout(20):
        while await facts(served, name) != wanted:  # noqa: ASYNC110 - it is asked over HTTP
            await asyncio.sleep(0.02)


@pytest.mark.req("AG-US5-AC6")
async def test_the_list_of_servers_shows_each_ones_health(gateway):
    served = await gateway(health_interval_ms=30, health_timeout_ms=1000)
    async with Toolbox() as server, Toolbox() as refusing:
        for name, one in (("good", server), ("doubtful", refusing)):
            far = {"transport_type": "HTTP", "connection_config": {"url": one.url}}
            url = one.url.replace("/mcp", "/health")
            await served.register(name, **far, health_check_url=url)
        off = registration("off", auto_connect=False, enabled=False)
        await served.client().post(SERVERS, json=off)
        await until_facts(served, "good", "CONNECTED", True, True, True, True)
        await until_facts(served, "off", "DISCONNECTED", False, None, None, None)
        refusing.health_status = 401
        await until_facts(served, "doubtful", "CONNECTED", True, True, False, True)
        refusing.health_status = 503
        async with asyncio.timeout(20):
            while (await facts(served, "doubtful"))[0] == "CONNECTED":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        shown = (await served.client().get(f"{SERVERS}/good")).json()
        assert shown["last_health_check"] is not None
        assert shown["response_time_ms"] > 0
        assert shown["error_rate"] == 0
        assert await facts(served, "good") == ("CONNECTED", True, True, True, True)
