"""What a Qdrant is told of each tool: all that others rely on, and its skills when it has them."""

import asyncio
import warnings

import pytest
from tests.plugin_registry import ADMIN
from tests.registry.test_skills import MAIL, classified

from mcp_junction.protocol.names import Pair
from mcp_junction.registry import search_vectors
from mcp_junction.search.qdrant import QdrantVectors
from mcp_junction.search.vectors import KeptVector
from mcp_junction.testing.fakes import InProcessModel


@pytest.fixture
async def qdrant(monkeypatch):
    """A Qdrant in its client's local mode, for whoever connects to one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # local mode says that it has no payload indexes
        from qdrant_client import AsyncQdrantClient

        client = AsyncQdrantClient(location=":memory:")
        monkeypatch.setattr(QdrantVectors, "connect", lambda url, say: QdrantVectors(client, say))
        yield client
        await client.close()


async def payloads(client, is_told) -> dict[str, dict]:
    """The payloads by the names of tools, once they are so."""
    async with asyncio.timeout(20):
        while True:
            found = {}
            for one in (await client.get_collections()).collections:
                points, _ = await client.scroll(one.name, limit=100)
                found |= {point.payload["name"]: point.payload for point in points}
            if is_told(found):
                return found
            await asyncio.sleep(0.02)


@pytest.mark.req("Q-5")
async def test_a_point_says_all_of_its_tool_and_its_skills_once_it_is_classified(
    single, toolbox, qdrant, monkeypatch, tmp_path
):
    model = InProcessModel()
    monkeypatch.setattr(search_vectors, "ModelWorker", lambda *args, **more: model)
    run = await single(vector_store="http://127.0.0.1:9", embedding_provider="static")
    index = search_vectors.make_index(run.junction, run.registry, run.store, tmp_path)
    run.junction.tool_search.make_vectors = lambda: index
    record = await run.add("post", await toolbox(MAIL))
    await run.find("email", 5)
    names = {"post.send_email", "post.read_email"}
    before = await payloads(qdrant, lambda found: found.keys() >= names)
    told = {
        "name": "post.send_email",
        "description": "Send an email message to somebody",
        "source_server_id": record.id,
        "source_server_name": "post",
        "original_name": "send_email",
        "is_external": True,
        "junction_pair": ["post", "send_email"],
    }
    unknown = {"is_classified": False, "skill_ids": [], "primary_skill_id": None}
    assert before["post.send_email"] == told | unknown
    tools = {one.name: one for one in await classified(run)}
    after = await payloads(
        qdrant, lambda found: all(found[name]["is_classified"] for name in names)
    )
    sent = tools["send_email"]
    assert "communication" in sent.skill_ids
    known = {"skill_ids": sent.skill_ids, "primary_skill_id": sent.primary_skill_id}
    assert after["post.send_email"] == told | {"is_classified": True} | known


async def test_vectors_that_the_store_does_not_take_go_with_their_tools(single, toolbox):
    run = await single()
    record = await run.add("post", await toolbox(MAIL))
    vectors = search_vectors.StoredVectors(run.registry, run.store)
    kept = {name: KeptVector("h", bytes(1024)) for name in ("send_email", "unknown")}
    await vectors.save("post", "m", kept)
    assert list(vectors._unsaved["post", "m"]) == ["unknown"]
    await run.registry.remove(record.id, ADMIN)
    await vectors.save("post", "m", kept)
    assert vectors._unsaved["post", "m"] == kept
    for name in kept:
        vectors.forget(Pair("post", name), "m")
    assert vectors._unsaved == {}
