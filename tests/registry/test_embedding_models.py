"""An endpoint of embeddings: what it is sent, and what becomes of answers that are wrong."""

import asyncio
import json
import struct

import pytest
from tests.fakes.memory_cache import MemoryCache
from tests.search.test_semantic import SKY, World

from mcp_junction.config.settings import Settings
from mcp_junction.errors import ModelUnavailable, UsageError
from mcp_junction.registry.search_vectors import EndpointModel, choose_model
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.fakes import InProcessModel

KEY = "sk-very-secret"


class Endpoint:
    """A small HTTP server that answers as it is told."""

    def __init__(self):
        self.asked, self.answer = [], lambda texts: (200, vectors(texts))

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = next(int(line[15:]) for line in head.lower().split("\r\n") if "content-le" in line)
        body = json.loads(await reader.readexactly(size))
        self.asked.append((head, body))
        status, value = self.answer(body["input"])
        if status is None:
            await reader.read()  # no answer, until the client has enough
        else:
            text = value if isinstance(value, bytes) else json.dumps(value).encode()
            writer.write(
                b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(text)) + text
            )
        writer.close()


def vectors(texts, size=4):
    rows = [
        {"index": n, "embedding": [len(text), n + 1.0, *[0.5] * (size - 2)]}
        for n, text in enumerate(texts)
    ]
    return {"data": rows[::-1]}


def model_at(url, **more):
    given = {"embedding_provider": "openai", "embedding_model": "m", **more}
    return EndpointModel(Settings(embedding_base_url=url, **given))


@pytest.fixture
async def endpoint():
    async with Endpoint() as made:
        yield made


async def test_texts_are_sent_in_batches_and_vectors_are_of_length_one_in_order(endpoint):
    model = model_at(endpoint.url + "/", embedding_api_key="")
    found = await model.embed([f"text {n}" for n in range(20)])
    assert [len(body["input"]) for _, body in endpoint.asked] == [8, 8, 4]
    assert endpoint.asked[0][0].startswith("POST /v1/embeddings ")
    assert endpoint.asked[0][1]["model"] == "m"
    for vector in found:
        assert sum(x * x for x in struct.unpack("<4f", vector)) == pytest.approx(1, abs=1e-5)
    first, second = (struct.unpack("<4f", one) for one in found[:2])
    assert first[1] / first[0] < second[1] / second[0], "in the order of the texts"


async def test_a_key_is_sent_as_a_bearer_and_never_told(endpoint):
    endpoint.answer = lambda texts: (500, {"error": KEY})
    model = model_at(endpoint.url, embedding_api_key=KEY)
    with pytest.raises(ModelUnavailable) as caught:
        await model.embed_query("x")
    assert KEY not in str(caught.value)
    assert KEY not in model.id
    assert endpoint.asked == [] or f"authorization: Bearer {KEY}" in endpoint.asked[0][0]


WRONG = {
    "not JSON": b"<html>",
    "another shape": {"vectors": []},
    "too few": {"data": []},
    "wrong index": {"data": [{"index": 7, "embedding": [1, 2]}]},
    "no numbers": {"data": [{"index": 0, "embedding": []}]},
    "zeros": {"data": [{"index": 0, "embedding": [0, 0, 0, 0]}]},
    "text": {"data": [{"index": 0, "embedding": ["a"]}]},
    "huge": {"data": [{"index": 0, "embedding": [1e300, 1e300, 0, 0]}]},
    "other dimensions": vectors(["x"], 7),
}


@pytest.mark.parametrize("what", WRONG)
async def test_answers_that_are_wrong_are_refused(endpoint, what):
    model = model_at(endpoint.url)
    await model.embed_query("x")
    endpoint.answer = lambda texts: (200, WRONG[what])
    with pytest.raises(ModelUnavailable):
        await model.embed_query("x")


async def test_a_broken_endpoint_leaves_tools_searchable_by_meaning(endpoint, monkeypatch):
    from mcp_junction.registry import search_vectors

    monkeypatch.setattr(search_vectors, "QUERY_TIMEOUT", 0.05)
    monkeypatch.setattr(search_vectors, "TIMEOUT", 0.05)
    endpoint.answer = lambda texts: (None, None)
    tasks = TaskScope("test")
    world = World(tasks, InProcessModel(), MemoryCache(), deep=model_at(endpoint.url))
    world.updater.follow({"sky": SKY})
    await world.updater.wait_until_current()
    async with asyncio.timeout(30):
        while world.vectors.embedded < 2:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)
    assert (await world.find("weather"))[0] == "sky.forecast"
    endpoint.answer = lambda texts: (200, vectors(texts))
    async with asyncio.timeout(30):
        await world.vectors.wait_until_embedded()
    assert (await world.find("weather")) != []
    await tasks.close()


def test_what_is_set_has_to_suffice(tmp_path, monkeypatch):
    from mcp_junction.search import minilm

    monkeypatch.setattr(minilm, "find_weights", lambda: None)
    for provider in ("openai", "minilm"):
        with pytest.raises(UsageError, match=provider):
            choose_model(Settings(embedding_provider=provider), tmp_path, None, None)
    for provider in ("auto", "static"):
        assert choose_model(Settings(embedding_provider=provider), tmp_path, None, None) is None
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / minilm.FILE).write_bytes(b"")
    assert choose_model(Settings(), tmp_path, None, None).id == minilm.MODEL
