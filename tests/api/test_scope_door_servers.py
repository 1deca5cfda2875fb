"""The door for a policy, for servers that it hides whole: endpoints, waiting, caching, failures.

As in ``test_scope_door.py``: what is hidden from an agent is as if no server had it.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.api.mcp_client import ERAS, HELLO, META, NEWER, Stateless, client_of, frame, post
from tests.api.scope_door import Gateways, Hiding, plain
from tests.plugin_rest import CALL, SERVERS, Served, registration
from tests.registry.toolbox import Toolbox, tool

from mcp_junction.catalog.endpoints import named_set
from mcp_junction.policy.principal import Principal, Role

SECRET = Hiding(servers=("secret",))


def make(*, with_hidden: bool) -> dict[str, Toolbox]:
    hidden = {"secret": Toolbox([tool("rob", "robs a bank")])} if with_hidden else {}
    return {**hidden, "zoo": Toolbox([tool("feed", "feeds animals")])}


@pytest.fixture
async def start(tmp_path, vault):
    async with AsyncExitStack() as stack:
        yield Gateways(stack, tmp_path, vault, make)


async def ask_endpoint(served: Served, era: str, role: str, path: str) -> tuple[int, Any]:
    """What the first request of a client to an endpoint, a GET and a DELETE are answered."""
    if era == "handshake":
        message, headers = frame("initialize", HELLO), {}
    else:
        message = frame("server/discover", {"_meta": META})
        headers = {"mcp_protocol_version": NEWER, "mcp_method": "server/discover"}
    answer = await post(served, role, message, path, **headers)
    client = served.client(role)
    others = [await client.get(path), await client.delete(path)]
    return answer.status_code, [one.text for one in (answer, *others)]


@pytest.mark.parametrize("era", ERAS)
async def test_an_endpoint_whose_servers_are_all_hidden_is_unknown(start, era, monkeypatch):
    sets = {
        name: named_set(name, entries, ["secret", "zoo"])
        for name, entries in {"vault": ["secret.rob"], "both": ["secret", "zoo"]}.items()
    }
    monkeypatch.setattr("mcp_junction.service.named_sets", lambda _: sets)
    served, _ = await start.begin("one", with_hidden=True, policy=SECRET)
    unknown = await ask_endpoint(served, era, "agent", "/mcp/nosuch")
    assert unknown[0] == 404
    for path in ("/mcp/secret", "/mcp/secret/", "/mcp/vault"):
        assert await ask_endpoint(served, era, "agent", path) == unknown
        assert (await ask_endpoint(served, era, "admin", path))[0] == 200
    for path in ("/mcp/zoo", "/mcp/both", "/mcp"):
        assert (await ask_endpoint(served, era, "agent", path))[0] == 200


@pytest.mark.parametrize("era", ERAS)
async def test_an_endpoint_that_is_hidden_while_it_is_in_use_is_unknown_at_once(start, era):
    policy = Hiding(servers=("secret",), is_hiding=False)
    served, _ = await start.begin("one", with_hidden=True, policy=policy)
    client = await client_of(era).open(served, "agent", "/mcp/secret")
    assert "result" in await client.send("tools/list")
    policy.is_hiding = True
    message = (await client.send("tools/list"))["error"]["message"]
    assert message == "there is nothing here; the endpoint is /mcp"


async def test_a_call_does_not_wait_for_a_hidden_server_that_is_being_connected(start, monkeypatch):
    monkeypatch.setattr("mcp_junction.upstream.connecting.RECONNECT_WINDOW", 3600.0)
    policy = Hiding(servers=("slow",))
    served, _ = await start.begin("one", with_hidden=False, policy=policy)

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    over = asyncio.Event()
    async with await asyncio.start_server(hang, "127.0.0.1", 0) as silent:
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/mcp"
        body = registration("slow", transport_type="HTTP", connection_config={"url": url})
        assert (await served.client().post(SERVERS, json=body)).status_code == 201
        try:
            for given in ({"name": "KEY.x"}, {"name": "KEY__x"}, {"name": "x", "server_id": "KEY"}):
                answers = []
                for key in ("slow", "nosu"):
                    text = json.dumps({**given, "arguments": {}}).replace("KEY", key)
                    answer = await served.client("agent").post(CALL, json=json.loads(text))
                    assert answer.status_code == 404, answer.text
                    answers.append(plain(answer.text).replace(key, "KEY"))
                assert answers[0] == answers[1]
        finally:
            over.set()


async def test_lists_that_differ_by_caller_are_not_for_shared_caches(start):
    served, _ = await start.begin("one", with_hidden=True, separator=".")
    for role in ("agent", "admin"):
        client = await Stateless.open(served, role)
        for method in ("tools/list", "server/discover"):
            assert (await client.send(method))["result"]["cacheScope"] == "private"


@pytest.mark.parametrize("era", ERAS)
async def test_while_the_policy_fails_for_an_agent_it_sees_nothing(start, era):
    class Failing:
        is_failing = False

        def grants(self, principal: Principal) -> None:
            if self.is_failing and principal.role is Role.AGENT:
                raise RuntimeError("the store is away")

    policy = Failing()
    served, _ = await start.begin("one", with_hidden=False, policy=policy)
    client = await client_of(era).open(served, "agent")
    given = {"name": "zoo__feed", "arguments": {}}
    assert "result" in await client.send("tools/call", given)
    policy.is_failing = True
    async with asyncio.timeout(30):
        assert (await client.send("tools/list"))["result"]["tools"] == []
        refused = await client.send("tools/call", given)
        assert refused["error"]["message"].startswith("unknown tool: zoo__feed")
        assert (await served.call("zoo.feed", role="agent")).status_code == 404
    admin = await client_of(era).open(served, "admin")
    assert "result" in await admin.send("tools/call", given)
