"""`/api/v1/skills`: showing and changing skills, and what becomes of the tools that have them."""

import asyncio
import json

import pytest
from tests.plugin_rest import SERVERS
from tests.registry.bees import BEES
from tests.registry.toolbox import tool, until

from mcp_junction.cli import skills as skills_command
from mcp_junction.errors import UsageError
from mcp_junction.search.static_table import mean, to_floats
from mcp_junction.skills.features import read_tool
from mcp_junction.skills.offline import embed_words
from mcp_junction.store.skills import SuggestionRecord

SKILLS = "/api/v1/skills"
MAIL = [
    tool("send_email", "Send an email message to somebody"),
    tool("read_email", "Read the emails in the inbox"),
]
POST = [tool("post_message", "Send a message to a chat channel, with email notifications")]
WEATHER = [tool("get_forecast", "Get the weather forecast for a place")]
NEW = {"name": "Letters", "description": "Write and send letters by post"}


@pytest.fixture
def add(toolbox):
    """Register a server with these tools and wait until they are classified."""

    async def adding(served, name, tools):
        box = await toolbox(tools)
        more = {"transport_type": "HTTP", "connection_config": {"url": box.url}}
        record = await served.register(name, **more)
        await classified(served, name, len(tools))
        return record

    return adding


async def classified(served, name, count):
    """A server's tools by name, once all are classified."""
    async with asyncio.timeout(20):
        while True:
            items = (await served.client().get(f"{SERVERS}/{name}/tools")).json()["items"]
            if len(items) == count and all(one["is_classified"] for one in items):
                return {one["original_name"]: one for one in items}
            await asyncio.sleep(0.02)


async def skills(served):
    """All skills by id, with their vectors, once these have followed."""
    async with asyncio.timeout(20):
        while True:
            await served.registry.skills.classifier.wait_until_done()
            found = (await served.client().get(SKILLS, params={"include_embeddings": True})).json()
            if all(one["embedding"] for one in found["items"]):
                return {one["id"]: one for one in found["items"]}


def vector(*tools, instead=""):
    """The mean of what these tools say; of other words where there are none."""
    texts = [
        read_tool(one["name"], f'{{"description": "{one["description"]}"}}'.encode()).embedded
        for one in tools
    ]
    return pytest.approx(to_floats(mean(embed_words(texts or [instead]))), abs=1e-6)


@pytest.mark.req("AG-US6-AC7", "AG-US3-AC1", "AG-US3-AC5", "K-5")
async def test_a_removal_leaves_skills_the_mean_of_what_is_left_and_of_nothing_their_words(
    served, add
):
    await add(served, "mail", MAIL)
    await add(served, "other", POST)
    await add(served, "sky", WEATHER)
    before = await skills(served)
    assert before["communication"]["embedding"] == vector(*MAIL, *POST)
    assert before["weather-environment"]["embedding"] == vector(*WEATHER)
    assert before["communication"]["tool_count"] == 3
    for name in ("other", "sky"):
        assert (await served.client().delete(f"{SERVERS}/{name}")).status_code == 204
    after = await skills(served)
    assert after["communication"]["embedding"] == vector(*MAIL)
    assert after["communication"]["tool_count"] == 2
    weather = after["weather-environment"]
    assert weather["embedding"] == vector(instead=weather["description"])
    assert weather["tool_count"] == 0


@pytest.mark.req("AG-US3-AC2", "AG-US3-AC3")
async def test_tools_show_their_skills_wherever_they_are_shown(served, add):
    await add(served, "mail", [*MAIL, *WEATHER])
    shown = await classified(served, "mail", 3)
    grouped = (await served.client().get("/api/v1/aggregator/tools")).json()["items"][0]["tools"]
    found = (await served.client().post("/api/v1/search", json={"query": "email"})).json()["tools"]
    assert {one["original_name"] for one in found} == {"send_email", "read_email"}
    for one in [*grouped, *found]:
        same = shown[one["original_name"]]
        for field in ("skill_ids", "primary_skill_id", "skill_confidences", "is_classified"):
            assert one[field] == same[field]
    for one in shown.values():
        assert 1 <= len(one["skill_ids"]) <= 3
        assert list(one["skill_confidences"]) == one["skill_ids"]
        first = one["skill_confidences"][one["skill_ids"][0]]
        assert one["primary_skill_id"] == (one["skill_ids"][0] if first >= 0.5 else None)
    await served.registry.skills.classifier.wait_until_done()
    state = (await served.client().get("/api/v1/aggregator/state")).json()
    assert (state["classified_tools"], state["unclassified_tools"]) == (3, 0)


@pytest.mark.req("AG-US3-AC6")
async def test_one_tool_is_classified_by_itself_once_it_is_discovered(served, add):
    """How soon that is, `make bench` measures (`classify`)."""
    await add(served, "other", WEATHER)
    record = await add(served, "mail", MAIL[:1])
    await served.bus.flush()
    events = await served.registry._context.store.events.after(0)
    types = [event.type for event in events if event.subject == record["id"]]
    assert types.index("tool.registered") < types.index("tool.classified")


async def test_a_search_can_be_among_the_tools_of_skills(served, add):
    await add(served, "mail", MAIL)
    await add(served, "other", [*WEATHER, tool("get_email", "Count messages", title="weather")])
    for ref in ("weather-environment", "Weather and environment"):
        body = {"query": "get email weather", "skill_filter": [ref]}
        answer = (await served.client().post("/api/v1/search", json=body)).json()
        held = [one["name"] for one in answer["tools"]]
        assert "other.get_forecast" in held
        assert not {"mail.send_email", "mail.read_email"} & set(held)
        assert answer["metadata"]["total_tools_searched"] == len(held)
    for body, expected in (({"skill_filter": []}, 0), ({"skill_filter": ["databases"]}, 0)):
        answer = await served.client().post("/api/v1/search", json={"query": "email", **body})
        assert len(answer.json()["tools"]) == expected
    for ref in ("cooking", "a\0b"):
        answer = await served.client().post(
            "/api/v1/search", json={"query": "email", "skill_filter": [ref]}
        )
        assert (answer.status_code, answer.json()["error_code"]) == (404, "SKILL_NOT_FOUND")


async def test_skills_are_listed_in_pages_by_name(served):
    client = served.client("agent")
    first = (await client.get(SKILLS, params={"limit": 20})).json()
    assert (first["total"], len(first["items"])) == (31, 20)
    rest = (await client.get(SKILLS, params={"limit": 20, "cursor": first["next_cursor"]})).json()
    names = [one["name"] for one in [*first["items"], *rest["items"]]]
    assert (len(names), names) == (31, sorted(names))
    assert rest["next_cursor"] is None
    assert "embedding" not in first["items"][0]
    assert {"id", "name", "description", "tool_count", "version"} < first["items"][0].keys()


async def test_a_skill_is_made_shown_changed_and_removed(served):
    client = served.client()
    made = await client.post(SKILLS, json=NEW)
    assert (made.status_code, made.headers["etag"]) == (201, '"1"')
    assert made.headers["location"] == f"{SKILLS}/letters"
    shown = await client.get(f"{SKILLS}/Letters")
    assert (shown.json(), shown.headers["etag"]) == (made.json(), '"1"')
    again = await client.post(SKILLS, json=NEW)
    assert (again.status_code, again.json()["error_code"]) == (409, "SKILL_ALREADY_EXISTS")
    alike = await client.post(SKILLS, json={**NEW, "name": "Letters!"})
    assert (alike.status_code, alike.json()["id"] != "letters") == (201, True)
    path, tag = f"{SKILLS}/letters", {"if-match": '"1"'}
    same = await client.patch(path, json={"name": "Letters"}, headers=tag)
    assert (same.status_code, same.json()["version"]) == (200, 1)
    changed = await client.patch(path, json={"name": "Post"}, headers=tag)
    assert (changed.json()["name"], changed.headers["etag"]) == ("Post", '"2"')
    assert changed.json()["description"] == NEW["description"]
    for late in (
        await client.patch(path, json={"name": "Mail"}, headers=tag),
        await client.patch(path, json={}, headers=tag),
        await client.delete(path, headers=tag),
    ):
        assert (late.status_code, late.json()["error_code"]) == (412, "VERSION_CONFLICT")
        assert late.json()["context"] == {"current_version": 2}
    taken = await client.patch(path, json={"name": "Databases"})
    assert (taken.status_code, taken.json()["error_code"]) == (409, "SKILL_ALREADY_EXISTS")
    assert (await client.delete(path, headers={"if-match": '"2"'})).status_code == 204
    for gone in (
        await client.get(path),
        await client.patch(path, json={}),
        await client.delete(path),
    ):
        assert (gone.status_code, gone.json()["error_code"]) == (404, "SKILL_NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, "$"),
        ({"name": "x"}, "$"),
        ({**NEW, "name": ""}, "$.name"),
        ({**NEW, "name": "x" * 101}, "$.name"),
        ({**NEW, "name": " x"}, "$.name"),
        ({**NEW, "name": "a\0b"}, "$.name"),
        ({**NEW, "description": "a\x1b[2Jb"}, "$.description"),
        ({**NEW, "description": 7}, "$.description"),
        ({**NEW, "embedding": []}, "$"),
        ([], "$"),
    ],
)
async def test_what_makes_no_skill_is_refused_with_its_place(gateway, body, place):
    served = await gateway()
    for answer in (
        await served.client().post(SKILLS, json=body),
        *([await served.client().patch(f"{SKILLS}/databases", json=body)] if len(body) > 1 else []),
    ):
        assert (answer.status_code, answer.json()["error_code"]) == (422, "VALIDATION_ERROR")
        assert [one["path"] for one in answer.json()["context"]["problems"]] == [place]
    assert (await served.client().get(SKILLS)).json()["total"] == 31


async def test_names_that_no_store_could_hold_are_not_there(served):
    for method in ("GET", "DELETE"):
        answer = await served.client().request(method, f"{SKILLS}/a%00b")
        assert answer.status_code == 404


async def test_a_removed_skill_leaves_its_tools_with_others(served, add):
    await add(served, "mail", MAIL)
    assert (await served.client().delete(f"{SKILLS}/communication")).status_code == 204
    tools = await classified(served, "mail", 2)
    assert all("communication" not in one["skill_ids"] for one in tools.values())
    assert all(one["skill_ids"] for one in tools.values())


@pytest.mark.req("AG-US3-AC1")
async def test_tools_are_classified_again_when_skills_change_and_when_that_is_asked_for(
    served, add
):
    await add(served, "mail", MAIL)
    inbox = {"name": "Inbox", "description": "Read the emails in the inbox"}
    assert (await served.client().post(SKILLS, json=inbox)).status_code == 201
    assert (await classified(served, "mail", 2))["read_email"]["primary_skill_id"] == "inbox"
    weather = {"description": "The weather of tomorrow, rain and wind"}
    assert (await served.client().patch(f"{SKILLS}/inbox", json=weather)).status_code == 200
    assert "inbox" not in (await classified(served, "mail", 2))["read_email"]["skill_ids"]
    inbox.pop("name")
    await served.client().patch(f"{SKILLS}/inbox", json=inbox)
    answer = await served.client("orchestrator").post(f"{SERVERS}/mail/tools/classify")
    assert (answer.status_code, answer.json()) == (202, {"tools": 2})
    await classified(served, "mail", 2)
    assert (await classified(served, "mail", 2))["read_email"]["primary_skill_id"] == "inbox"
    missing = await served.client().post(f"{SERVERS}/nobody/tools/classify")
    assert (missing.status_code, missing.json()["error_code"]) == (404, "SERVER_NOT_FOUND")
    body = await served.client().post(f"{SERVERS}/mail/tools/classify", json={"x": 1})
    assert body.status_code == 422


async def test_what_is_classified_is_told_on_the_stream_of_events(served, add):
    record = await add(served, "mail", MAIL)
    await served.bus.flush()
    answer = await served.client().get(
        "/api/v1/events",
        params={"follow": "false", "types": "tool.classified"},
        headers={"last-event-id": "0"},
    )
    assert answer.status_code == 200, answer.text
    assert record["id"] in answer.text
    assert '"send_email"' in answer.text


async def test_what_is_switched_off_classifies_nothing(gateway, toolbox):
    served = await gateway(classifier="off")
    box = await toolbox(MAIL)
    await served.register("mail", transport_type="HTTP", connection_config={"url": box.url})
    await served.until("mail", "CONNECTED")
    asked = await served.client().post(f"{SERVERS}/mail/tools/classify")
    assert asked.status_code == 202
    await served.registry.skills.classifier.wait_until_done()
    items = (await served.client().get(f"{SERVERS}/mail/tools")).json()["items"]
    assert [one["is_classified"] for one in items] == [False, False]


@pytest.mark.req("K-4", "AG-US3-AC8")
async def test_a_suggested_skill_is_shown_and_approved_or_rejected(served, toolbox):
    box = await toolbox(BEES)
    more = {"transport_type": "HTTP", "connection_config": {"url": box.url}}
    record = await served.register("apiary", **more)
    await classified(served, "apiary", 20)
    path = f"{SKILLS}/suggestions"
    async with asyncio.timeout(20):
        while not (found := (await served.client().get(path)).json())["items"]:
            await served.registry.skills.classifier.wait_until_done()
    (one,) = found["items"]
    assert (found["total"], found["next_cursor"], one["status"]) == (1, None, "pending")
    assert {"server_id": record["id"], "server": "apiary", "name": "harvest_honey"} in one["tools"]
    for role in ("orchestrator", "agent", "viewer"):
        assert (await served.client(role).get(path)).status_code == 403
        refused = await served.client(role).post(f"{path}/{one['id']}/approve")
        assert refused.status_code == 403
    assert (await served.client().post(f"{path}/nobody/approve")).status_code == 404
    assert (await served.client().get(path, params={"status": "some"})).status_code == 422
    answer = await served.client().post(f"{path}/{one['id']}/approve")
    assert answer.status_code == 201
    skill = answer.json()["id"]
    assert answer.headers["location"] == f"{SKILLS}/{skill}"
    tools = await classified(served, "apiary", 20)
    behind = [tools[each["name"]]["primary_skill_id"] for each in one["tools"]]
    assert set(behind) == {skill}
    assert (await served.client().get(path)).json()["items"] == []
    (decided,) = (await served.client().get(path, params={"status": "all"})).json()["items"]
    told = decided["status"], decided["skill_id"], decided["decided_by"]
    assert told == ("approved", skill, "the-admin")
    assert (await served.client().post(f"{path}/{one['id']}/reject")).status_code == 409


async def test_suggestions_are_read_page_by_page(served):
    made = [
        SuggestionRecord(
            f"s{number}", "Bees", "Keeps bees", [], created_at=1_700_000_000.25 + number
        )
        for number in range(3)
    ]
    await served.registry._context.store.suggestions.replace_pending(made)
    shown, asked = [], {"limit": 2}
    while True:
        answer = await served.client().get(f"{SKILLS}/suggestions", params=asked)
        assert answer.status_code == 200, answer.text
        shown += [one["id"] for one in answer.json()["items"]]
        if (cursor := answer.json()["next_cursor"]) is None:
            break
        asked["cursor"] = cursor
    assert shown == ["s0", "s1", "s2"]


async def test_no_skill_is_called_as_the_path_of_suggestions(served):
    made = {"name": "Suggestions", "description": "What to do next"}
    answer = await served.client().post(SKILLS, json=made)
    assert answer.status_code == 201
    assert answer.json()["id"] != "suggestions"


@pytest.mark.req("K-4")
async def test_commands_show_approve_and_reject_suggestions_and_classify(gateway, toolbox, capsys):
    served = await gateway()
    box = await toolbox(BEES)
    more = {"transport_type": "HTTP", "connection_config": {"url": box.url}}
    await served.register("apiary", **more)

    async def ask(*words: str) -> str:
        where = ["--url", served.url, "--key", served.keys["admin"]]
        assert await asyncio.to_thread(skills_command.run, [words[0], *where, *words[1:]]) == 0
        return capsys.readouterr().out

    assert json.loads(await ask("classify", "apiary", "--json"))["unclassified_tools"] == 0
    assert "20 tools were classified again." in await ask("classify", "apiary")
    async with asyncio.timeout(20):
        while not (found := json.loads(await ask("suggestions", "--json"))):
            await served.registry.skills.classifier.wait_until_done()
    (one,) = found
    assert one["name"] in await ask("suggestions")
    with pytest.raises(UsageError, match="no pending suggestion"):
        await ask("approve", "nobody")
    assert f"is a skill of {len(one['tools'])} tools." in await ask("approve", one["id"][:8])
    assert "No skill is suggested." in await ask("suggestions")
    assert "approved" in await ask("suggestions", "--all")
    with pytest.raises(UsageError, match="no pending suggestion"):
        await ask("reject", one["id"])


async def test_progress_is_told_while_tools_are_classified(served, toolbox):
    told: list[dict] = []
    real = served.bus.publish_transient
    served.bus.publish_transient = lambda kind, data, *rest: told.append({kind: dict(data)})
    box = await toolbox([tool(f"send_email_{n}", "Send an email") for n in range(150)])
    more = {"transport_type": "HTTP", "connection_config": {"url": box.url}}
    await served.register("mail", **more)
    await until(lambda: served.registry.skills.classifier.classified == 150)
    served.bus.publish_transient = real
    steps = [one["classification.progress"] for one in told if "classification.progress" in one]
    assert len(steps) >= 2, "a page at a time"
    assert steps[-1]["classified_tools"] == steps[-1]["total_tools"] == 150
