"""The door for a policy, for prompts, resources, completions, updates, prefixes and skills.

As in ``test_scope_door.py``: what is hidden from an agent is as if no server had it.
"""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from tests.api.mcp_client import ACCEPTED, ERAS, META, NEWER, client_of, frame
from tests.api.scope_door import Except, Gateways, Hiding
from tests.plugin_registry import ADMIN
from tests.plugin_rest import Served
from tests.registry.toolbox import Toolbox, tool, until

from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.names import Pair

ASK = Pair("d", "y__ask")
"""A prompt whose plain name in strict spelling is that of the prompt ``ask`` of ``d__y``, too."""
SHARED = Pair("d", "mem://shared")
"""A resource of which ``zoo`` has one with the same URI."""
TEMPLATE = Pair("d", "cave://{bear}")
HIDDEN = frozenset({("prompts", ASK), ("resources", SHARED), ("resources", TEMPLATE)})
PROMPTS_CHANGED = "notifications/prompts/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"
SKILLS = "/api/v1/skills"


class Library(Toolbox):
    """A server with prompts, resources and templates, which notes what it is asked for."""

    def __init__(
        self,
        prompts: list[str],
        resources: list[str],
        templates: list[str],
        tools: list[dict] | None = None,
    ) -> None:
        super().__init__(tools)
        self.prompts = [{"name": name, "description": "asks"} for name in prompts]
        self.resources = [{"uri": uri, "name": uri} for uri in resources]
        self.templates = [{"uriTemplate": uri, "name": uri} for uri in templates]
        self.asked: list[tuple[str, Any]] = []

    async def _answer(self, method: str, params: dict) -> tuple[int, dict]:
        listed = {
            "prompts/list": {"prompts": self.prompts},
            "resources/list": {"resources": self.resources},
            "resources/templates/list": {"resourceTemplates": self.templates},
        }
        if method in listed:
            return 200, {"result": listed[method]}
        named = params.get("name") or params.get("uri") or params.get("ref")
        answers: dict[str, Any] = {
            "prompts/get": {"messages": []},
            "resources/read": {"contents": [{"uri": params.get("uri"), "text": "read"}]},
            "resources/subscribe": {},
            "resources/unsubscribe": {},
            "completion/complete": {"completion": {"values": [f"for {named}"]}},
        }
        if method in answers:
            self.asked.append((method, named))
            return 200, {"result": answers[method]}
        status, answer = await super()._answer(method, params)
        if method == "initialize":
            answer["result"]["capabilities"] |= {
                "prompts": {"listChanged": True},
                "resources": {"listChanged": True, "subscribe": True},
                "completions": {},
            }
        return status, answer


def libraries(*, with_hidden: bool) -> dict[str, Library]:
    def only(*names: str) -> list[str]:
        return list(names) if with_hidden else []

    return {
        "d": Library(
            [*only(ASK.name), "greet"], [*only(SHARED.name), "mem://d"], only(TEMPLATE.name)
        ),
        "d__y": Library(["ask"], [], []),
        "zoo": Library([], ["mem://shared", "file:///zoo"], ["zoo://{animal}"]),
    }


@pytest.fixture
async def start(tmp_path, vault):
    async with AsyncExitStack() as stack:
        yield Gateways(stack, tmp_path, vault, libraries)


# Whatever may mean what is hidden, is like it, or is nothing at all.
PROMPTS = ["d:y__ask", "d.y__ask", "d__y__ask", "y__ask", "d__y__asks", "d__greet", "ask"]
URIS = [
    *("mem://shared", "d+mem://shared", "mem://d", "mem://other", "cave://brown", "cave://{bear}"),
    *("zoo://lion", "zoo://{animal}", "file:///zoo", "file:///other", "nothing://at/all"),
]


@pytest.mark.parametrize("era", ERAS)
async def test_prompts_resources_and_completions_are_as_if_it_were_not_there(start, era):
    two = await start.both(Hiding(HIDDEN))

    async def ask(served: Served) -> str:
        client = await client_of(era).open(served, "agent")
        lists = ("prompts/list", "resources/list", "resources/templates/list")
        found = [await client.send(method) for method in lists]
        argument = {"name": "x", "value": "y"}
        for name in PROMPTS:
            found.append(await client.send("prompts/get", {"name": name}))
            given = {"ref": {"type": "ref/prompt", "name": name}, "argument": argument}
            found.append(await client.send("completion/complete", given))
        for uri in URIS:
            found.append(await client.send("resources/read", {"uri": uri}))
            given = {"ref": {"type": "ref/resource", "uri": uri}, "argument": argument}
            found.append(await client.send("completion/complete", given))
            if era == "handshake":
                found.append(await client.send("resources/subscribe", {"uri": uri}))
        return "\n".join(map(json.dumps, found))

    hiding, without = await two.ask(ask)
    assert hiding.splitlines() == without.splitlines()
    assert "cave" not in hiding.splitlines()[2]
    asked = [{key: box.asked for key, box in boxes.items()} for boxes in two.boxes]
    assert asked[0] == asked[1], "and nothing was sent for it"
    assert asked[0]["zoo"], "while the rest was"
    listed = [json.loads(line)["result"] for line in hiding.splitlines()[:3]]
    assert [one["name"] for one in listed[0]["prompts"]] == ["d__greet", "d__y__ask"]
    uris = [one["uri"] for one in listed[1]["resources"]]
    assert uris == ["mem://d", "mem://shared", "file:///zoo"], "no URI gives way to a hidden one"
    admin = await client_of(era).open(two.hiding, "admin")
    assert len((await admin.send("resources/list"))["result"]["resources"]) == 4, "others see it"


@asynccontextmanager
async def listening(served: Served, role: str, uris: list[str]):
    """The notifications on a ``subscriptions/listen`` stream, as they come."""
    wanted = {
        "promptsListChanged": True,
        "resourcesListChanged": True,
        "resourceSubscriptions": uris,
    }
    body = frame("subscriptions/listen", {"notifications": wanted, "_meta": META})
    headers = {**ACCEPTED, "mcp-protocol-version": NEWER, "mcp-method": "subscriptions/listen"}
    heard: list[dict] = []

    async def read(answer: Any) -> None:
        async for line in answer.aiter_lines():
            if line.startswith("data:") and line[5:].strip():
                heard.append(json.loads(line[5:]))

    client = served.client(role)
    async with client.stream("POST", "/mcp", json=body, headers=headers) as answer:
        assert answer.status_code == 200
        reading = asyncio.create_task(read(answer))
        await until(lambda: heard)
        try:
            yield heard
        finally:
            reading.cancel()


async def test_a_listening_stream_hears_nothing_of_what_is_hidden(start):
    policy = Hiding(HIDDEN)
    served, boxes = await start.begin("one", with_hidden=True, policy=policy)
    box, upstream = boxes["d"], served.junction.servers["d"]
    uris = ["mem://d", "mem://shared", "cave://brown"]

    def update(uri: str) -> None:
        params = encode.dumps({"uri": uri})
        told = frames.decode(encode.notification(UPDATED, params))
        served.junction.messages.receive(upstream, told)

    async def collect(*lists: list[dict]) -> list[list[str]]:
        await asyncio.sleep(0.3)
        taken = [[one["method"] for one in heard] for heard in lists]
        for heard in lists:
            heard.clear()
        return taken

    async with (
        listening(served, "agent", uris) as agent,
        listening(served, "admin", ["mem://d"]) as admin,
    ):
        honoured = agent[0]["params"]["notifications"]["resourceSubscriptions"]
        assert honoured == ["mem://d", "mem://shared"], "the second one is that of the zoo"
        asked = {named for method, named in box.asked if method == "resources/subscribe"}
        assert asked == {"mem://d"}
        await collect(agent, admin)
        for items in (box.prompts, box.resources, box.templates):
            items[0]["description"] = "another"
        await served.registry.refresh("d", ADMIN)
        heard = await collect(agent, admin)
        assert heard[0] == []
        assert sorted(heard[1]) == [PROMPTS_CHANGED, RESOURCES_CHANGED]
        box.resources[1]["description"] = "another"
        await served.registry.refresh("d", ADMIN)
        assert await collect(agent, admin) == [[RESOURCES_CHANGED]] * 2
        update("mem://shared")
        assert await collect(agent, admin) == [[], []]
        update("mem://d")
        assert await collect(agent, admin) == [[UPDATED]] * 2
        policy.granted = Except(HIDDEN | {("resources", Pair("d", "mem://d"))})
        update("mem://d")
        assert await collect(agent, admin) == [[], [UPDATED]], "hidden since it subscribed"


@pytest.mark.parametrize("era", ERAS)
async def test_servers_that_are_hidden_do_not_count_for_the_prefix(start, era):
    policy = Hiding(servers=("d", "d__y"))
    served, _ = await start.begin("one", with_hidden=True, policy=policy, prefix="auto")

    async def names(role: str) -> list[str]:
        client = await client_of(era).open(served, role)
        return [one["name"] for one in (await client.send("tools/list"))["result"]["tools"]]

    assert await names("agent") == ["echo"]
    assert await names("admin") == ["d__echo", "d__y__echo", "zoo__echo"]
    called = await served.call("echo", role="agent")
    assert called.status_code == 200, called.text


async def test_skills_count_and_show_only_tools_that_are_not_hidden(tmp_path, vault):
    mails = [tool("send_email", "Send an email to someone"), tool("read_email", "Read the emails")]

    def make(*, with_hidden: bool) -> dict[str, Library]:
        return {"mail": Library([], [], [], mails if with_hidden else mails[:1])}

    async with AsyncExitStack() as stack:
        hidden = frozenset({("tools", Pair("mail", "read_email"))})
        gateways = Gateways(stack, tmp_path, vault, make)
        served, _ = await gateways.begin("one", with_hidden=True, policy=Hiding(hidden))
        shown = {}
        async with asyncio.timeout(20):
            while shown.get("communication", {}).get("tool_count") != 2:
                await served.registry.skills.classifier.wait_until_done()
                answer = await served.client().get(SKILLS, params={"include_embeddings": True})
                shown = {one["id"]: one for one in answer.json()["items"]}
        client = served.client("agent")
        for path in (SKILLS, f"{SKILLS}/communication"):
            answer = (await client.get(path, params={"include_embeddings": True})).json()
            (skill,) = [one for one in answer.get("items", [answer]) if one["tool_count"]]
            assert (skill["id"], skill["tool_count"]) == ("communication", 1)
            assert skill["embedding"] is None, "it would be the mean with a hidden one"
        assert shown["communication"]["embedding"], "others see it"
