"""`POST /api/v1/search` by meaning: strategies, skills, parts of scores, and what is left out."""

import re
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.plugin_rest import serve_api
from tests.registry.toolbox import tool

from mcp_junction.demo import DEMOS
from mcp_junction.registry.search_vectors import describe_tools
from mcp_junction.search.mirror import VectorMirror
from mcp_junction.search.qdrant import QdrantVectors
from mcp_junction.search.semantic import SEARCH_MODEL

README = Path(__file__).resolve().parents[2] / "README.md"
SEARCH = "/api/v1/search"
MAIL = [tool("send_email", "Send a message to somebody"), tool("read_inbox", "Show new messages")]
SKY = [tool("forecast", "Will it rain tomorrow"), tool("wind", "How strong the wind is")]


@pytest.fixture
async def served(opener):
    """A gateway that searches by meaning, over each kind of store."""
    async with AsyncExitStack() as stack:
        yield await serve_api(stack, opener, has_vectors=True)


@pytest.fixture
def add(toolbox):
    async def adding(served, name, tools, **more):
        box = await toolbox(tools)
        given = {"transport_type": "HTTP", "connection_config": {"url": box.url}, **more}
        made = await served.register(name, **given)
        await served.context.junction.tool_search.begin().vectors.wait_until_embedded()
        return made

    return adding


async def search(served, query, *, role="admin", **more):
    answer = await served.client(role).post(SEARCH, json={"query": query, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def names(told):
    return [found["name"] for found in told["tools"]]


@pytest.mark.req("Q-1", "AG-US2-AC1", "AG-US2-AC7")
async def test_tools_are_found_by_meaning_and_the_parts_of_a_score_are_explained(served, add):
    await add(served, "mail", MAIL)
    await add(served, "sky", SKY)
    told = await search(served, "weather", explain=True)
    assert names(told)[0] == "sky.forecast"
    assert told["metadata"]["strategy"] == "hybrid"
    best = told["tools"][0]
    assert set(best["explain"]) == {"meaning", "words", "server", "skill"}
    assert sum(best["explain"].values()) == pytest.approx(best["score"], abs=1e-3)
    assert 0 < best["score"] <= 1
    assert "explain" not in (await search(served, "weather"))["tools"][0]
    assert names(await search(served, "weather", strategy="keyword")) == []
    assert names(await search(served, "rain", strategy="keyword")) == ["sky.forecast"]
    assert names(await search(served, "weather", strategy="semantic"))[0] == "sky.forecast"


@pytest.mark.req("AG-US2-AC4")
async def test_filters_by_server_and_skill_hold_for_meaning_too(served, add):
    await add(served, "mail", MAIL)
    await add(served, "sky", SKY)
    everything = served.context.registry.skills.classifier
    everything.wake()
    await everything.wait_until_done()
    told = await search(served, "weather and messages", server_filter=["mail"])
    assert {found["source_server"]["name"] for found in told["tools"]} == {"mail"}
    assert told["metadata"]["total_tools_searched"] == 2
    told = await search(served, "rain tomorrow", strategy="hierarchical", limit=1)
    assert names(told) == ["sky.forecast"]
    skills = told["matched_skills"]
    assert len(skills) == 3
    assert [one["score"] for one in skills] == sorted((s["score"] for s in skills), reverse=True)
    assert {*told["tools"][0]["skill_ids"]} & {one["id"] for one in skills}
    told = await search(served, "messages", skill_filter=["weather-environment"])
    assert all("weather-environment" in found["skill_ids"] for found in told["tools"])


@pytest.mark.req("AG-US2-AC3", "Q-4")
async def test_what_is_disconnected_disabled_or_not_granted_is_not_found_by_meaning(served, add):
    sky = await add(served, "sky", SKY)
    assert "sky.forecast" in names(await search(served, "weather"))
    assert "sky.forecast" in names(await search(served, "weather", role="agent"))
    client = served.client("admin")
    path = f"/api/v1/mcp/tools/{sky['id']}/forecast"
    assert (await client.patch(path, json={"enabled": False})).status_code == 200
    assert "sky.forecast" not in names(await search(served, "weather"))
    await client.patch(path, json={"enabled": True})
    updater = served.context.junction.tool_search.begin()
    await updater.wait_until_current()
    await updater.vectors.wait_until_embedded()
    assert "sky.forecast" in names(await search(served, "weather"))
    await client.post(f"/api/v1/aggregator/servers/{sky['id']}/disconnect")
    assert names(await search(served, "weather")) == []


@pytest.mark.req("Q-2")
async def test_vectors_are_kept_in_the_store_with_the_id_of_their_model(served, add):
    sky = await add(served, "sky", SKY, description="Weather of the day")
    await search(served, "weather")
    kept = await served.context.store.vectors.of_server(sky["id"], SEARCH_MODEL)
    assert sorted(one.name for one in kept) == ["forecast", "wind"]
    assert {len(one.vector) for one in kept} == {1024}
    assert await served.context.store.vectors.of_server(sky["id"], "another model") == []


@pytest.mark.parametrize(
    "query", ["\x00\x01", "😀" * 10, "'; DROP TABLE tools; --", "\u202e\u200b", "[UNK] [CLS]"]
)
async def test_hostile_queries_find_little_and_break_nothing(served, add, query):
    await add(served, "sky", SKY)
    told = await search(served, query, strategy="hybrid")
    assert isinstance(told["tools"], list)


@pytest.mark.parametrize("query", ["", "x" * 100_000])
async def test_queries_that_are_empty_or_too_long_are_refused(served, query):
    answer = await served.client("admin").post(SEARCH, json={"query": query})
    assert answer.status_code == 422


@pytest.mark.parametrize("body", [b'{"query": "\xff"}', b"\0\1", b'{"query": "\\ud800"}'])
async def test_a_query_that_is_no_text_is_refused(served, body):
    headers = {"content-type": "application/json"}
    answer = await served.client("admin").post(SEARCH, content=body, headers=headers)
    assert answer.status_code == 422


async def test_while_a_qdrant_is_away_memory_is_searched_and_the_answer_says_so(served, add):
    await add(served, "sky", SKY)
    index = served.context.junction.tool_search.begin().vectors
    away = QdrantVectors.connect("http://127.0.0.1:9", partial(describe_tools, served.registry))
    index._mirror = VectorMirror(
        served.junction.tasks, away, index._cache, SEARCH_MODEL, kept_here=frozenset(), retry=30
    )
    told = await search(served, "weather")
    assert names(told)[0] == "sky.forecast"
    assert told["metadata"]["strategy"] == "hybrid"
    assert told["metadata"]["warning"].startswith("the vector store is away")


async def test_without_a_model_words_are_searched_and_the_answer_says_so(served, add):
    await add(served, "sky", SKY)
    vectors = served.context.junction.tool_search.begin().vectors

    async def fail(job):
        from mcp_junction.errors import ModelUnavailable

        raise ModelUnavailable("gone")

    vectors._process.rank = fail
    told = await search(served, "rain", strategy="semantic")
    assert names(told) == ["sky.forecast"]
    assert told["metadata"]["strategy"] == "keyword"
    assert "words were searched" in told["metadata"]["warning"]


@pytest.mark.peers
@pytest.mark.req("Q-1", "AG-US2-AC1")
async def test_the_example_of_the_readme_finds_what_tells_of_changes(gateway, peers):
    served = await gateway(has_vectors=True)
    asked = re.search(r"tools search '(.*)'", README.read_text("utf-8"))
    assert asked is not None
    given = {"git": peers.entries()["git"]}
    for name, module in DEMOS.items():
        given[name] = {"command": sys.executable, "args": ["-m", module]}
    for name, config in given.items():
        await served.register(name, connection_config=config)
    await served.context.junction.tool_search.begin().vectors.wait_until_embedded()
    told = await search(served, asked[1])
    assert told["metadata"]["strategy"] == "hybrid"
    telling = {f"git.git_{verb}" for verb in ("diff_unstaged", "diff_staged", "diff", "log")}
    telling |= {"git.git_status", "git.git_show"}
    assert telling & set(names(told)[:3]), names(told)
    assert {one.partition(".")[0] for one in names(told)[:3]} == {"git"}
