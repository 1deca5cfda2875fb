"""Gateways as processes of their own, before an issuer that rotates its tokens and detects reuse.

Services share a store on PostgreSQL; programs in stdio mode share the one in their data directory.
"""

import asyncio
import json
import os
import signal
import threading
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests import preloaded
from tests.credentials.test_stdio_mode import browse
from tests.credentials.world import entry, fetch
from tests.fakes.issuer import FakeIssuer, Fault
from tests.plugin_journeys import own_environment

from mcp_junction.cli import sign_in
from mcp_junction.cli.servers import run as run_servers
from mcp_junction.credentials.kinds import LEASE
from mcp_junction.credentials.source import WAIT
from mcp_junction.testing.client import LineClient

pytestmark = pytest.mark.timeout(300)

BOUND = 40.0
PROGRAM = str(Path(__file__).with_name("gateway_process.py"))
AUTH = "/api/v1/aggregator/servers/crm/auth"
NEWER = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": NEWER,
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
on_postgres = pytest.mark.parametrize("store_url", ["postgres"], indirect=True)


class ServingProcess:
    """One `mcp-junction serve`, and the administrator's client of it."""

    def __init__(self, process, url, key):
        self.process = process
        headers = {"authorization": f"Bearer {key}", "accept": "application/json"}
        self.client = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=BOUND, trust_env=False, verify=False
        )

    async def state(self):
        shown = (await self.client.get(AUTH)).json()["items"]
        return shown[0]["state"] if shown else None

    async def until(self, state):
        async with asyncio.timeout(BOUND):
            while await self.state() != state:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)

    async def sign_in(self):
        wanted = {"redirect_uri": "http://127.0.0.1:1/back"}
        login = (await self.client.post(f"{AUTH}/login", json=wanted)).json()
        _, headers = await fetch(login["url"])
        done = {"callback_url": headers["location"]}
        answer = await self.client.post(f"{AUTH}/logins/{login['login_id']}/complete", json=done)
        assert answer.json()["status"] == "completed", answer.text

    async def call(self, nonce):
        """Call a tool as a client of 2026-07-28; the account, or the error."""
        params = {"name": "crm.whoami", "arguments": {"nonce": nonce}, "_meta": META}
        frame = {"jsonrpc": "2.0", "id": nonce, "method": "tools/call", "params": params}
        own = {"mcp-protocol-version": NEWER, "mcp-method": "tools/call", "mcp-name": "crm.whoami"}
        answer = (await self.client.post("/mcp", json=frame, headers=own)).json()
        return answer["result"]["content"][0]["text"] if "result" in answer else str(answer)

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)


@asynccontextmanager
async def serving(config, store_url, folder, lease):
    """Start a service; it is killed when the block ends, unless it was before."""
    key = "jct_" + "a" * 40
    variables = {"MCP_CREDENTIAL_KEY": "c3" * 32, "JUNCTION_ADMIN_KEY": key}
    argv = [*preloaded.command(), PROGRAM, str(lease), "serve", "--config", str(config)]
    argv += ["--port", "0", "--store", store_url, "--data-dir", str(folder)]
    process = await asyncio.create_subprocess_exec(
        *argv, env=own_environment(variables), stdin=DEVNULL, stderr=PIPE
    )
    said = ""
    try:
        async with asyncio.timeout(BOUND):
            while "/mcp" not in said.partition("listening on ")[2]:
                line = await process.stderr.readline()
                assert line, said
                said += line.decode()
        url = said.partition("listening on ")[2].partition("/mcp")[0]
        draining = asyncio.ensure_future(process.stderr.read())
        one = ServingProcess(process, url, key)
        async with one.client:
            yield one
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    assert b"Traceback" not in await draining


@pytest.fixture
async def issuer():
    async with FakeIssuer(era=NEWER) as one:
        yield one


@asynccontextmanager
async def three(issuer, store_url, folder, lease):
    """Three services over one store, all signed in by one sign-in."""
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"crm": entry(issuer)}}))
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving(config, store_url, folder / "0", lease))
        await first.until("needs_sign_in")
        others = [serving(config, store_url, folder / str(n), lease) for n in (1, 2)]
        found = [first, *[await stack.enter_async_context(one) for one in others]]
        await first.sign_in()
        for one in found:
            await one.until("signed_in")
            async with asyncio.timeout(BOUND):
                while await one.call(0) != "alice":  # noqa: ASYNC110 - it connects
                    await asyncio.sleep(0.05)
        yield found


async def flood(services, calls, width=32):
    """Make many calls, so many at a time, of all services in turn; what else than alice came."""
    gate = asyncio.Semaphore(width)

    async def one(nonce):
        async with gate:
            return await services[nonce % len(services)].call(nonce)

    answers = await asyncio.gather(*map(one, range(1, calls + 1)))
    return [answer for answer in answers if answer != "alice"]


async def check_expiries(issuer, services, calls, expiries):
    for _ in range(expiries):
        before = issuer.count("refresh")
        issuer.revoke_access()
        assert await flood(services, calls) == []
        assert issuer.count("refresh") == before + 1
    used = [what[1] for kind, what in issuer.ledger if kind == "call" and what[1]]
    assert len(used) == calls * expiries, "each call has run once"
    assert issuer.count("reuse") == 0
    assert issuer.count("authorize") == 1


async def check_killed(issuer, services, lease):
    """Kill the process that is renewing; the others go on with the old token, then with a new."""
    holder, *others = services
    refreshed = issuer.count("refresh")
    issuer.faults["/token"] = fault = Fault(503, delay=2 * BOUND, times=1)
    renewing = asyncio.ensure_future(holder.client.post(f"{AUTH}/refresh", json={}))
    async with asyncio.timeout(BOUND):
        while fault.times:  # noqa: ASYNC110 - until the issuer has got the request
            await asyncio.sleep(0.01)
    holder.kill()
    with pytest.raises(httpx.HTTPError):
        await renewing
    assert await flood(others, 60) == [], "the token that is good still serves"
    assert issuer.count("refresh") == refreshed
    issuer.revoke_access()
    failed = await flood(others, 60)
    assert failed == [] or lease > WAIT, failed  # calls wait for a lease that is shorter
    async with asyncio.timeout(4 * BOUND):
        while await flood(others, 20):
            pass
    assert issuer.count("refresh") == refreshed + 1
    assert issuer.count("reuse") == 0
    assert issuer.count("authorize") == 1


@pytest.mark.req("NFR-SEC3")
@on_postgres
async def test_three_processes_renew_once_and_one_that_is_killed_takes_nobody_with_it(
    issuer, store_url, tmp_path
):
    async with three(issuer, store_url, tmp_path, 1.5) as services:
        await check_expiries(issuer, services, 120, 3)
        await check_killed(issuer, services, 1.5)


@pytest.mark.soak
@pytest.mark.req("NFR-SEC3")
@on_postgres
async def test_a_thousand_calls_at_each_of_many_expiries_all_succeed(issuer, store_url, tmp_path):
    async with three(issuer, store_url, tmp_path, LEASE) as services:
        await check_expiries(issuer, services, 1000, 12)
        await check_killed(issuer, services, LEASE)


async def check_two_programs(issuer, folder, monkeypatch, calls, expiries):
    config, data = folder / "mcp.json", folder / "data"
    config.write_text(json.dumps({"mcpServers": {"crm": entry(issuer)}}))
    monkeypatch.setattr(sign_in.webbrowser, "open", open_browser)
    words = ["login", "crm", "--config", str(config), "--data-dir", str(data)]
    assert await asyncio.to_thread(run_servers, words) == 0
    env = own_environment({"JUNCTION_DATA_DIR": str(data)})
    argv = [*preloaded.program(), "--config", str(config)]
    programs = [LineClient(argv, env=env) for _ in range(2)]
    try:
        for one in programs:
            await asyncio.to_thread(one.open)
            assert "crm__whoami" in str(await asyncio.to_thread(one.tools)).replace(":", "__")
        name = (await asyncio.to_thread(programs[0].tools))[0]
        for _ in range(expiries):
            before = issuer.count("refresh")
            issuer.revoke_access()
            asked = [(one, one.call(name, nonce=n + 1)) for n in range(calls) for one in programs]
            answers = [await asyncio.to_thread(one.answer, number) for one, number in asked]
            assert {str(answer.get("error")) for answer in answers} == {"None"}
            assert issuer.count("refresh") == before + 1
        assert issuer.count("reuse") == 0
        assert issuer.count("authorize") == 1
    finally:
        for one in programs:
            one.kill()


def open_browser(url):
    threading.Thread(target=browse, args=(url,)).start()
    return True


@pytest.mark.req("NFR-SEC3")
async def test_two_programs_on_one_file_renew_a_rotating_token_once(issuer, tmp_path, monkeypatch):
    await check_two_programs(issuer, tmp_path, monkeypatch, 20, 3)


@pytest.mark.soak
@pytest.mark.req("NFR-SEC3")
async def test_two_programs_on_one_file_stay_signed_in(issuer, tmp_path, monkeypatch):
    await check_two_programs(issuer, tmp_path, monkeypatch, 100, 30)
