"""The page on which a person decides about a call: who is sent there, and who may decide there."""

import asyncio
import re
from contextlib import AsyncExitStack

import httpx
import pytest
from tests.api.mcp_client import HELLO, META, Handshake, Stateless, frame, post
from tests.api.test_approvals import APPROVALS, ARGS, World, open_world
from tests.registry.toolbox import BOUND, Toolbox, tool

from mcp_junction.identity.keys import KeyRing
from mcp_junction.policy.principal import Role
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.store.audit_records import AuditQuery

pytestmark = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
CALL = {"name": "box.delete", "arguments": ARGS}
BY_URL = {"elicitation": {"url": {}}}
FORM = re.compile(r'name="form" value="([0-9a-f]+)"')


@pytest.fixture
async def world(opener):
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(Toolbox([tool("delete")]))
        made = await open_world(stack, opener, box)
        await made.grant()
        yield made


class Browser:
    """Opens the page of a request, as a browser does."""

    def __init__(self, world: World, approval_id: str) -> None:
        self.world = world
        self.path = f"/approvals/{approval_id}"
        self.http = httpx.AsyncClient(
            base_url=world.served.url, trust_env=False, timeout=BOUND, follow_redirects=True
        )

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.http.aclose()

    async def show_key(self, role: str) -> httpx.Response:
        headers = {"origin": self.world.served.url}
        form = {"key": self.world.served.keys[role]}
        return await self.http.post(self.path, data=form, headers=headers)

    async def press(self, what: str, form: str | None = None, **more: str) -> httpx.Response:
        if form is None:
            found = FORM.search((await self.http.get(self.path)).text)
            assert found is not None
            form = found[1]
        return await self.http.post(self.path, data={"form": form, "do": what, **more})


async def open_client(world: World, era: str):
    """A client that can be asked by URL."""
    if era == "stateless":
        return await Stateless.open(world.served, "agent")
    hello = {**HELLO, "capabilities": BY_URL}
    answer = await post(world.served, "agent", frame("initialize", hello))
    return Handshake(world.served, "agent", "/mcp", answer.headers["mcp-session-id"])


async def send(client, params):
    if isinstance(client, Handshake):
        return await client.send("tools/call", params)
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": BY_URL}
    headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call"}
    message = frame("tools/call", {**params, "_meta": meta})
    answer = await post(client.served, "agent", message, mcp_name=params["name"], **headers)
    return answer.json()


def question_of(answer: dict, era: str) -> dict:
    if era == "handshake":
        assert answer["error"]["code"] == -32042, answer
        (question,) = answer["error"]["data"]["elicitations"]
        return question
    assert answer["result"]["resultType"] == "input_required", answer
    return answer["result"]["inputRequests"]["approval"]["params"]


async def decide(world: World, url: str, what: str = "approve") -> None:
    approval_id = url.rpartition("/")[2]
    assert url == f"{world.served.url}/approvals/{approval_id}"
    async with Browser(world, approval_id) as browser:
        assert (await browser.show_key("admin")).status_code == 200
        assert (await browser.press(what)).status_code == 200


@pytest.mark.req("P-4")
async def test_a_handshake_client_is_sent_to_the_page_and_told_when_it_was_decided(world):
    client = await open_client(world, "handshake")
    question = question_of(await send(client, CALL), "handshake")
    assert (question["mode"], world.box.calls) == ("url", 0)
    headers = {"accept": "text/event-stream", "mcp-session-id": client.session}
    async with world.served.client("agent").stream("GET", "/mcp", headers=headers) as stream:
        await decide(world, question["url"])
        async with asyncio.timeout(BOUND):
            async for line in stream.aiter_lines():
                if "elicitation/complete" in line:
                    assert question["elicitationId"] in line
                    break
    assert "result" in await send(client, CALL)
    assert world.box.calls == 1
    assert question_of(await send(client, CALL), "handshake")["url"] != question["url"]


@pytest.mark.req("P-4")
async def test_a_stateless_client_comes_back_and_its_call_goes_on(world):
    client = await open_client(world, "stateless")
    asked = await send(client, CALL)
    question, state = question_of(asked, "stateless"), asked["result"]["requestState"]
    back = {**CALL, "requestState": state, "inputResponses": {"approval": {"action": "accept"}}}
    coming = asyncio.create_task(send(client, back))
    await decide(world, question["url"])
    answer = await asyncio.wait_for(coming, BOUND)
    assert "content" in answer["result"], answer
    assert world.box.calls == 1
    assert "error" in await send(client, back)  # a state is good once
    assert world.box.calls == 1


async def test_to_come_back_with_nothing_decided_gets_nothing(world, monkeypatch):
    monkeypatch.setattr("mcp_junction.eras.resume._PAGE_WAIT", 0.01)
    client = await open_client(world, "stateless")
    for action in ("accept", "decline"):
        asked = await send(client, CALL)
        state = asked["result"]["requestState"]
        back = {**CALL, "requestState": state, "inputResponses": {"approval": {"action": action}}}
        answer = await send(client, back)
        if action == "accept":
            assert question_of(answer, "stateless")["url"] == question_of(asked, "stateless")["url"]
        else:
            assert answer["error"]["code"] == -32007
    other = {**back, "arguments": {"path": "/other"}}
    state = (await send(client, CALL))["result"]["requestState"]
    assert "error" in await send(client, {**other, "requestState": state})
    assert world.box.calls == 0


async def test_a_denial_on_the_page_ends_the_call_with_its_note(world):
    approval_id = await world.ask()
    async with Browser(world, approval_id) as browser:
        await browser.show_key("admin")
        shown = await browser.press("deny", note="<b>not</b> today")
        assert "Denied" in shown.text
        again = await browser.http.get(browser.path)
        assert "it is denied" in again.text
        assert not FORM.search(again.text)
    told = await world.invoke()
    assert "<b>not</b> today" in told.json()["error"]["message"]


async def test_over_rest_the_answer_names_the_page(world):
    told = (await world.invoke()).json()
    assert told["url"] == f"{world.served.url}/approvals/{told['approval_id']}"
    assert told["url"] in told["how"]
    await decide(world, told["url"])
    assert await world.passes()


@pytest.mark.parametrize("role", ["agent", "viewer", "orchestrator"])
@pytest.mark.req("P-4")
async def test_only_who_may_approve_decides_there(world, role):
    made = {"role": "orchestrator", "agent_id": "the-agent"} if role == "orchestrator" else {}
    approval_id = await world.ask(**made)
    async with Browser(world, approval_id) as browser:
        asked = await browser.http.get(browser.path)
        assert asked.status_code == 200  # for a key, and nothing is shown
        assert "delete" not in asked.text
        assert "/tmp/a" not in asked.text
        refused = await browser.show_key(role)
        assert refused.status_code == 403
        assert "/tmp/a" not in refused.text
        assert (await browser.press("approve", form="00")).status_code in (200, 403)
    assert not await world.passes()


async def test_the_keyless_owner_of_this_machine_decides_nothing_there(world):
    """An agent may run on it, too."""
    world.served.service._owner_without_key = True
    world.served.service._needs_key = False
    assert (await world.served.client(None).get(f"{APPROVALS}")).status_code == 401
    approval_id = await world.ask()
    mine = await post(world.served, None, frame("initialize", HELLO))
    assert mine.status_code == 200  # it is the owner's elsewhere
    async with Browser(world, approval_id) as browser:
        assert "show the key" in (await browser.http.get(browser.path)).text
        await browser.press("approve", form="00")
    assert not await world.passes()


async def test_a_form_of_another_page_decides_nothing(world):
    first, second = await world.ask(), await world.ask({"path": "/tmp/b"})
    async with Browser(world, first) as browser:
        await browser.show_key("admin")
        form = FORM.search((await browser.http.get(browser.path)).text)[1]
        for wrong in ("", "00", "x", form[:-2]):
            assert (await browser.press("approve", form=wrong)).status_code == 403
        browser.path = f"/approvals/{second}"
        assert (await browser.press("approve", form=form)).status_code == 403
        foreign = {"origin": "https://evil.example"}
        fields = {"form": form, "do": "approve"}
        answer = await browser.http.post(f"/approvals/{first}", data=fields, headers=foreign)
        assert answer.status_code == 403
        assert (await browser.press("nonsense")).status_code == 404
    assert not await world.passes()


async def test_a_key_that_another_process_has_just_made_is_taken(world):
    approval_id = await world.ask()
    others = await KeyRing.open(world.served.context.store)
    world.served.keys["new"] = (await others.create(Role.ADMIN, "ann", "test"))[1]
    async with Browser(world, approval_id) as browser:
        assert (await browser.show_key("new")).status_code == 200
        assert (await browser.press("approve")).status_code == 200
    assert (await world.show(approval_id))["decided_by"] == "ann"


async def test_what_is_shown_is_escaped_redacted_and_revealed_on_record(world):
    args = {"path": "<script>alert(1)</script>", "password": "hunter2-hunter2"}
    approval_id = await world.ask(args)
    async with Browser(world, approval_id) as browser:
        assert (await browser.http.post(browser.path, data={"key": "none"})).status_code == 401
        shown = await browser.show_key("admin")
        assert "<script>" not in shown.text
        assert "&lt;script&gt;" in shown.text
        assert "hunter2" not in shown.text
        assert shown.headers["cache-control"] == "no-store"
        assert shown.headers["referrer-policy"] == "same-origin"  # else Origin would be null
        assert "frame-ancestors 'none'" in shown.headers["content-security-policy"]
        assert "hunter2-hunter2" in (await browser.press("reveal")).text
        browser.path = "/approvals/nothing"
        assert (await browser.http.get(browser.path)).status_code == 404
    await world.served.audit.flush()
    rows = await world.served.context.store.audit.rows(AuditQuery(kind="outcome", limit=100))
    assert "approval.reveal" in {row.action for row in rows}


async def test_nothing_is_hidden_in_what_an_approver_sees(world):
    """Neither behind a long text nor by what turns or hides letters."""
    long = "a" * 1_500 + " && rm -rf /"
    await world.ask({"path": long, "turned": "safe\u202egnp.exe", "hidden": "a\u200bb"})
    (shown,) = (await world.served.client().get(APPROVALS)).json()
    assert "(512 more characters)" in shown["preview"]
    assert "\\u202e" in shown["preview"]
    assert "\\u200b" in shown["preview"]
    assert shown["preview"].isprintable()
    many = await world.ask({f"k{n}": "b" * 900 for n in range(9)})
    cut = (await world.served.client().get(f"{APPROVALS}/{many}")).json()["preview"]
    assert cut.endswith("more characters)")
    async with Browser(world, shown["id"]) as browser:
        await browser.show_key("admin")
        told = (await browser.press("reveal")).text
        assert "rm -rf /" in told
        assert "\u202e" not in told


async def test_a_known_secret_does_not_show_where_a_text_is_cut(world):
    secret = "s3cr3t-0123456789abcdef"
    KNOWN.learn_value(secret)
    await world.ask({"text": "x" * 990 + secret + "y" * 50})
    (shown,) = (await world.served.client().get(APPROVALS)).json()
    assert "s3cr3t" not in shown["preview"]


async def test_who_comes_back_from_the_page_needs_what_the_grant_wants_by_then(world, monkeypatch):
    monkeypatch.setattr("mcp_junction.eras.resume._PAGE_WAIT", 0.01)
    client = await open_client(world, "stateless")
    state = (await send(client, CALL))["result"]["requestState"]
    await world.grant(token_mode="single_use")
    back = {**CALL, "requestState": state, "inputResponses": {"approval": {"action": "accept"}}}
    answer = await send(client, back)
    assert answer["error"]["code"] == -32004, answer
    assert world.box.calls == 0
