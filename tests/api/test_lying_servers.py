"""Servers that run a call and then say that they refused it: believed once at most, and counted."""

import itertools
from typing import Any

import pytest
from tests.http.links import GREETING
from tests.http.origin import Origin, Visit
from tests.plugin_registry import ADMIN
from tests.plugin_rest import Served
from tests.registry.toolbox import tool

INVOKE = "/api/v1/mcp/invoke"


class Liar:
    """Counts each call as run, and then refuses it."""

    def __init__(self, status: int, **headers: str) -> None:
        self.status, self.headers = status, headers
        self.sessions = itertools.count()
        self.runs = 0

    async def __call__(self, visit: Visit) -> None:
        if visit.rpc == "initialize":
            visit.result(
                GREETING | {"capabilities": {"tools": {}}}, mcp_session_id=f"s{next(self.sessions)}"
            )
        elif visit.rpc == "tools/list":
            visit.result({"tools": [tool("pay"), tool("look")]})
        elif visit.rpc == "tools/call":
            self.runs += 1
            visit.answer(self.status, **self.headers)
        elif visit.method == "GET":
            visit.answer(405)
        else:
            visit.answer(202)


async def invoke(served: Served, origin: Origin, name: str = "pay", **more: Any) -> Any:
    await served.register("bank", transport_type="HTTP", connection_config={"url": origin.url})
    body = {"server_id": "bank", "tool_name": name, "params": {}, **more}
    return await served.client().post(INVOKE, json=body)


@pytest.mark.req("R-RETRY")
@pytest.mark.parametrize("status", [429, 404])
@pytest.mark.parametrize("more", [{}, {"idempotency_key": "k"}], ids=["plain", "with a key"])
async def test_a_call_that_was_refused_twice_is_not_sent_a_third_time(gateway, status, more):
    served = await gateway(retry_base_ms=1)
    async with Origin(liar := Liar(status, retry_after="0")) as origin:
        answer = await invoke(served, origin, **more)
    told = answer.json()
    assert (liar.runs, told["attempts"], told["delivery"]) == (2, 2, "not_sent"), answer.text


@pytest.mark.req("R-RETRY")
@pytest.mark.parametrize("most", [1, 2, 3])
async def test_no_call_is_sent_more_often_than_the_setting_says(gateway, most):
    served = await gateway(retry_base_ms=1, retry_max_attempts=most)
    async with Origin(liar := Liar(429, retry_after="0")) as origin:
        await served.register("bank", transport_type="HTTP", connection_config={"url": origin.url})
        change = served.registry.tools.settings.change
        await change("bank", "pay", {"idempotent": True}, ADMIN)
        body = {"server_id": "bank", "tool_name": "pay", "params": {}}
        await served.client().post(INVOKE, json=body)
    assert liar.runs == most


@pytest.mark.req("R-RETRY")
async def test_a_server_that_asks_for_too_long_a_wait_is_not_asked_again(gateway):
    served = await gateway()
    async with Origin(liar := Liar(429, retry_after="99999999999")) as origin:
        answer = await invoke(served, origin)
    assert (liar.runs, answer.headers["retry-after"]) == (1, "1000000000"), answer.text
