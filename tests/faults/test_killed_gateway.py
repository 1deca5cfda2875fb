"""The service killed with -9 under load, with strict audit: nothing has run without a trace."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.killed_service import BOUND, MCP, KilledService, wait_for_tools
from tests.plugin_faults import Figures, Rig

RECONCILED = 30.0
CLIENTS = 8


async def make_agent(client: httpx.AsyncClient) -> str:
    body = {"agent_id": "bot", "declared_tools": ["led:*"], "create_key": True}
    answer = await client.post(f"{MCP}/agents", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["key"])


class Load:
    """Calls with a nonce each, by several clients at a time, until the service is gone."""

    def __init__(self) -> None:
        self.answers: dict[str, int] = {}
        self.next = 0
        self.enough = asyncio.Event()

    async def press(self, service: KilledService, key: str, calls: int) -> None:
        """Return once the service was killed, after it has answered so many calls."""
        self.enough.clear()
        wanted = len(self.answers) + calls
        async with service.client(key) as client:
            pressing = [
                asyncio.ensure_future(self._call_on(client, wanted)) for _ in range(CLIENTS)
            ]
            await asyncio.wait_for(self.enough.wait(), BOUND)
            service.kill()
            await asyncio.gather(*pressing)

    async def _call_on(self, client: httpx.AsyncClient, wanted: int) -> None:
        while True:
            self.next += 1
            nonce = f"n{self.next}"
            body = {"server_id": "led", "tool_name": "record", "params": {"nonce": nonce}}
            try:
                answer = await client.post(f"{MCP}/invoke", json={**body, "correlation_id": nonce})
            except httpx.HTTPError:
                return
            self.answers[nonce] = answer.status_code
            if len(self.answers) >= wanted:
                self.enough.set()


async def read_audit(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    rows, path = [], f"{MCP}/audit?agent_id=bot&limit=1000"
    while path:
        answer = await client.get(path)
        assert answer.status_code == 200, answer.text
        rows += answer.json()
        path = answer.links.get("next", {}).get("url", "")
    return rows


def find_open(rows: list[dict[str, Any]]) -> set[str]:
    closed = {row["closes"] for row in rows}
    return {row["id"] for row in rows if row["kind"] == "intent"} - closed


@pytest.mark.req("F-11", "R-AUDIT")
@pytest.mark.parametrize(
    "kills", [pytest.param(2, id="short"), pytest.param(200, id="long", marks=pytest.mark.soak)]
)
async def test_whatever_has_run_has_its_intent_however_often_the_service_is_killed(
    rig: Rig, figures: Figures, tmp_path: Path, kills: int
) -> None:
    rig.settings |= {"audit": "strict"}
    rig.add("led")
    service, load, chance = KilledService(rig, tmp_path / "data"), Load(), random.Random(11)
    key = ""
    for _ in range(kills):
        async with service.run():
            async with service.client() as admin:
                await wait_for_tools(admin)
                key = key or await make_agent(admin)
            await load.press(service, key, chance.randrange(1, 40))
    async with service.run(), service.client() as admin:
        async with asyncio.timeout(RECONCILED):
            while find_open(rows := await read_audit(admin)):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
    runs = rig.ledger().runs()
    intended = {row["correlation_id"] for row in rows if row["kind"] == "intent"}
    ends = Counter(row["outcome"] for row in rows if row["closes"])
    figures(kills=kills, calls=load.next, runs=runs.total(), ends=dict(ends))
    assert set(runs) <= intended
    assert set(runs.values()) == {1}, "nothing runs twice"
    answered = {nonce for nonce, status in load.answers.items() if status == 200}
    assert answered <= set(runs)
    assert ends["unknown"] >= 1, "what was under way when it was killed is unknown"
    assert len(answered) >= kills
