"""Large results: their beginning, their shape and a link that only the same caller can read."""

import json

import pytest
from tests.api.mcp_client import ERAS, client_of
from tests.api.test_exposure import add
from tests.registry.toolbox import tool

from mcp_junction.calls.stages import large_results
from mcp_junction.config.load import EndpointSet, without_file

ROWS = [{"id": n, "name": f"row é {n}"} for n in range(200)]
TEXT = json.dumps(ROWS, ensure_ascii=False)
pytestmark = [pytest.mark.req("J-LARGE-RESULTS"), pytest.mark.parametrize("era", ERAS)]


@pytest.fixture
async def rows(gateway, toolbox):
    """A gateway that gives at most 100 tokens of a result, and a server with large ones."""

    async def start(tools=(), **settings):
        given = {"result_tokens": 100, **settings}
        served = await gateway(**given)
        box = await toolbox(list(tools) or [tool("rows")])
        box.says = {"content": [{"type": "text", "text": TEXT}]}
        await add(served, "box", box)
        return served, box

    return start


async def call(client, name: str = "box.rows") -> dict:
    return (await client.send("tools/call", {"name": name, "arguments": {}}))["result"]


async def read(client, uri: str) -> dict:
    return await client.send("resources/read", {"uri": uri})


async def test_a_large_result_is_its_beginning_its_shape_and_a_link_to_its_pages(rows, era):
    served, _ = await rows()
    client = await client_of(era).open(served, "agent")
    beginning, link = (await call(client))["content"]
    assert beginning["text"].startswith(TEXT[:100])
    assert "a JSON array of 200 items with the keys id, name" in beginning["text"]
    assert link["type"] == "resource_link"
    assert (link["mimeType"], link["size"]) == ("application/json", len(TEXT.encode()))
    whole, uri = "", link["uri"]
    while uri:
        (page,) = (await read(client, uri))["result"]["contents"]
        assert len(page["text"]) <= 400
        whole += page["text"]
        uri = page["_meta"].get("junction/next")
    assert whole == TEXT
    assert page["_meta"]["junction/page"] == page["_meta"]["junction/pages"]
    for wrong in (
        f"{link['uri']}?page=9999",
        f"{link['uri']}x",
        "junction-result:",
        link["uri"][:-1],
    ):
        assert "error" in await read(client, wrong)


async def test_nobody_else_can_read_it_and_nobody_after_an_hour(rows, era, monkeypatch):
    served, _ = await rows()
    client = await client_of(era).open(served, "agent")
    link = (await call(client))["content"][1]
    unknown = f"junction-result:{'x' * 32}"
    other = await client_of(era).open(served, "admin")
    said = (await read(other, link["uri"]))["error"]
    missing = (await read(other, unknown))["error"]
    assert said["code"] == missing["code"]
    same = said["message"].replace(link["uri"], unknown)
    assert same == missing["message"], "it does not exist for others"
    assert "result" in await read(client, link["uri"])
    assert large_results.KEPT_SECONDS == 3600
    monkeypatch.setattr(large_results, "KEPT_SECONDS", 0.0)
    assert "error" in await read(client, link["uri"])


async def test_it_cannot_be_read_any_more_without_the_grant(rows, era):
    served, _ = await rows(grants=False)
    path = "/api/v1/mcp/policies"
    grant = {"agent_id": "the-agent", "server_id": "box", "tool_name": "rows"}
    given = await served.client().post(f"{path}/grant", json={**grant, "actions": ["invoke"]})
    client = await client_of(era).open(served, "agent")
    link = (await call(client))["content"][1]
    assert "result" in await read(client, link["uri"])
    assert (await served.client().delete(f"{path}/{given.json()['id']}")).status_code in (200, 204)
    assert "error" in await read(client, link["uri"])


async def test_the_latest_can_be_read_however_large_it_is_and_older_ones_make_room(
    rows, era, monkeypatch
):
    monkeypatch.setattr(large_results, "_MOST_CHARACTERS", 1000)
    served, _ = await rows()
    client = await client_of(era).open(served, "agent")
    older, latest = [(await call(client))["content"][1]["uri"] for _ in range(2)]
    assert "error" in await read(client, older)
    assert "result" in await read(client, latest)


async def test_structured_content_is_kept_whole_or_left_out_whole(rows, era):
    promising = tool("promising", outputSchema={"type": "object"})
    served, box = await rows([tool("rows"), promising])
    client = await client_of(era).open(served, "admin")
    box.says["structuredContent"] = {"rows": ROWS}
    assert "structuredContent" not in await call(client)
    assert (await call(client, "box.promising"))["structuredContent"] == {"rows": ROWS}
    box.says["structuredContent"] = {"count": 200}
    assert (await call(client))["structuredContent"] == {"count": 200}


async def test_what_is_small_or_no_text_or_asked_for_over_rest_stays_readable(rows, era):
    served, box = await rows()
    client = await client_of(era).open(served, "admin")
    answer = await served.call("box.rows")
    assert answer.json()["content"] == box.says["content"], "REST has no links to follow"
    image = {"type": "image", "data": "A" * 2000, "mimeType": "image/png"}
    box.says = {"content": [image], "isError": True}
    result = await call(client)
    assert result["isError"] is True
    whole, uri = "", result["content"][1]["uri"]
    while uri:
        (page,) = (await read(client, uri))["result"]["contents"]
        whole, uri = whole + page["text"], page["_meta"].get("junction/next")
    assert json.loads(whole)["content"] == [image]
    box.says = {"content": [{"type": "text", "text": "small"}]}
    assert (await call(client))["content"] == box.says["content"]


async def test_an_endpoint_has_a_budget_of_its_own(gateway, toolbox, era):
    box = await toolbox([tool("rows")])
    box.says = {"content": [{"type": "text", "text": TEXT}]}
    config = without_file({}, {}, {"box": {"url": box.url}})
    sets = {"few": EndpointSet(("box",), result_tokens=100)}
    served = await gateway(config._replace(endpoints=sets))
    await served.until("box", "CONNECTED")
    client = await client_of(era).open(served, "admin")
    assert len((await call(client))["content"]) == 1
    client = await client_of(era).open(served, "admin", "/mcp/few")
    assert [one["type"] for one in (await call(client))["content"]] == ["text", "resource_link"]
