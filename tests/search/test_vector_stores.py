"""One suite for every vector store: in memory, pgvector, and Qdrant in its client's local mode."""

import asyncio
import warnings
from contextlib import asynccontextmanager

import numpy
import pytest
from tests.fakes.memory_cache import MemoryCache
from tests.made_stores import schema_url
from tests.search.test_semantic import SKY, World
from tests.search.test_static_table import TABLE
from tests.search.tools import tool

from mcp_junction.errors import StoreUnavailable, VectorStoreError
from mcp_junction.protocol.names import Pair
from mcp_junction.search.held import VectorSpace
from mcp_junction.search.qdrant import INDEXED, QdrantVectors, point_id
from mcp_junction.search.semantic import SEARCH_MODEL
from mcp_junction.search.vectors import VectorRow
from mcp_junction.store.database import Query
from mcp_junction.store.pgvector import PgVectors
from mcp_junction.store.store import open_store
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.fakes import InProcessModel
from mcp_junction.vault.vault import Vault

SIZE = 32


def unit(*numbers):
    vector = numpy.array([*numbers, *[0] * (SIZE - len(numbers))], numpy.float32)
    return (vector / numpy.linalg.norm(vector)).astype("<f4").tobytes()


class MemoryVectors:
    """The vectors of the process that ranks, as a VectorStore."""

    def __init__(self, size=SIZE):
        self._size, self._spaces, self._numbers = size, {}, {}

    async def put(self, model, rows):
        space = self._spaces.setdefault(model, VectorSpace(self._size))
        numbers = [self._numbers.setdefault(row.pair, len(self._numbers)) for row in rows]
        space.put(numbers, [row.vector for row in rows])

    async def remove(self, pairs):
        for space in self._spaces.values():
            space.drop([self._numbers[pair] for pair in pairs if pair in self._numbers])

    async def retire_others(self, model, pairs):
        for other, space in self._spaces.items():
            if other != model:
                space.drop([self._numbers[pair] for pair in pairs])

    async def settle(self):
        pass

    async def nearest(self, model, query, limit, within):
        space = self._spaces.setdefault(model, VectorSpace(self._size))
        near = space.cosines(
            numpy.frombuffer(query, "<f4")[None, :], numpy.arange(len(self._numbers))
        )[0]
        known = [
            (pair, float(near[number]))
            for pair, number in self._numbers.items()
            if space.has[number] and (within is None or pair in within)
        ]
        return sorted(known, key=lambda one: -one[1])[:limit]


async def describe(pairs):
    return [{"name": ".".join(pair), "source_server_name": pair.server} for pair in pairs]


@asynccontextmanager
async def pgvectors(postgres, **options):
    async with await open_store(await schema_url(postgres), Vault([bytes(range(32))])) as store:
        assert store.pgvectors is not None, "this PostgreSQL does not have pgvector"
        yield PgVectors(store.pgvectors._database, **options)


@asynccontextmanager
async def local_qdrant():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # local mode says that it has no payload indexes
        from qdrant_client import AsyncQdrantClient

        client = AsyncQdrantClient(location=":memory:")
        yield QdrantVectors(client, describe), client
        await client.close()


@pytest.fixture(params=["memory", "pgvector", "qdrant"])
async def vectors(request):
    if request.param == "memory":
        yield MemoryVectors()
    elif request.param == "qdrant":
        async with local_qdrant() as (store, _):
            yield store
    else:
        async with pgvectors(request.getfixturevalue("postgres")) as store:
            yield store


A, B, C = Pair("one", "a"), Pair("one", "b"), Pair("two", "a")
ROWS = [VectorRow(A, unit(1)), VectorRow(B, unit(1, 1)), VectorRow(C, unit(0, 1))]


def pairs(found):
    return [pair for pair, _ in found]


@pytest.mark.req("Q-5")
async def test_the_nearest_come_first_with_their_cosines(vectors):
    await vectors.put("m", ROWS)
    found = await vectors.nearest("m", unit(1, 0.1), 10, None)
    assert pairs(found) == [A, B, C]
    assert [score for _, score in found] == pytest.approx([0.995, 0.774, 0.0995], abs=0.01)
    assert pairs(await vectors.nearest("m", unit(0, 1), 1, None)) == [C]


@pytest.mark.req("Q-5")
async def test_only_what_is_given_is_found(vectors):
    await vectors.put("m", ROWS)
    assert pairs(await vectors.nearest("m", unit(1), 10, [C, B])) == [B, C]
    assert await vectors.nearest("m", unit(1), 10, [Pair("no", "such")]) == []
    assert await vectors.nearest("m", unit(1), 10, []) == []


@pytest.mark.req("Q-5")
async def test_a_tool_is_replaced_and_removed(vectors):
    await vectors.put("m", ROWS)
    await vectors.put("m", [VectorRow(A, unit(0, 0, 1))])
    assert pairs(await vectors.nearest("m", unit(0, 0, 1), 1, None)) == [A]
    await vectors.remove([A, C, Pair("no", "such")])
    assert pairs(await vectors.nearest("m", unit(1), 10, None)) == [B]


@pytest.mark.req("Q-5")
async def test_models_are_never_mixed(vectors):
    await vectors.put("m", ROWS[:1])
    await vectors.put("n", ROWS[1:])
    assert pairs(await vectors.nearest("m", unit(1), 10, None)) == [A]
    assert set(pairs(await vectors.nearest("n", unit(1), 10, None))) == {B, C}


@pytest.mark.req("Q-5")
async def test_of_a_few_tools_among_many_the_nearest_are_found(vectors):
    assert await recall_in_scope(vectors, 600, SIZE) >= 0.95


@pytest.mark.req("Q-5")
async def test_what_another_model_made_of_a_tool_goes_when_one_has_taken_over(vectors):
    await vectors.put("m", ROWS)
    await vectors.put("n", ROWS[:2])
    await vectors.retire_others("n", [A, B])
    await vectors.settle()
    assert pairs(await vectors.nearest("m", unit(1), 10, None)) == [C]
    assert pairs(await vectors.nearest("n", unit(1), 10, None)) == [A, B]
    await vectors.put("n", ROWS[2:])
    await vectors.retire_others("n", [C])
    assert await vectors.nearest("m", unit(1), 10, None) == []
    assert pairs(await vectors.nearest("n", unit(1), 10, None)) == [A, B, C]


async def test_a_table_or_collection_that_is_empty_goes(postgres):
    wide = VectorRow(A, unit(1) + unit(1))
    async with pgvectors(postgres) as store:
        await store.put("m", [wide])
        await store.put("n", ROWS[:1])
        await store.retire_others("n", [A])
        assert await names_like(store, "tool_nearness_%", "tablename", "pg_tables") == [
            f"tool_nearness_{SIZE}"
        ]
        assert await store.nearest("m", wide.vector, 3, None) == [], "it is made again"
    async with local_qdrant() as (store, client):
        await store.put("m", [wide])
        await store.put("n", ROWS[:1])
        await store.retire_others("n", [A])
        assert len((await client.get_collections()).collections) == 1
        assert pairs(await store.nearest("n", unit(1), 3, None)) == [A]


async def names_like(store, pattern, column, view):
    def find():
        rows = yield Query(
            f"SELECT {column} FROM {view} WHERE schemaname = current_schema()"
            f" AND {column} LIKE '{pattern}' ORDER BY 1"
        )
        return [row[0] for row in rows]

    return await store._database.write(find(), durable=False)


async def test_a_table_has_an_index_once_it_has_many_rows(postgres):
    async with pgvectors(postgres, indexed_from=3) as store:
        await store.put("m", ROWS[:2])
        await store.settle()
        assert await names_like(store, "%_hnsw", "indexname", "pg_indexes") == []
        assert pairs(await store.nearest("m", unit(1), 9, None)) == [A, B], "the table is read"
        await store.put("m", ROWS[2:])
        await asyncio.gather(store.settle(), store.settle())
        await store.settle()
        index = f"tool_nearness_{SIZE}_hnsw"
        assert await names_like(store, "%_hnsw", "indexname", "pg_indexes") == [index]
        assert pairs(await store.nearest("m", unit(1), 9, None)) == [A, B, C]


@pytest.mark.req("Q-5")
async def test_a_search_of_all_goes_through_the_index_however_often_it_is_made(postgres):
    def scans():
        rows = yield Query(
            "SELECT coalesce(sum(idx_scan), 0) FROM pg_stat_all_indexes"
            " WHERE schemaname = current_schema() AND indexrelname LIKE '%_hnsw'"
        )
        return int(rows[0][0])

    async with pgvectors(postgres, indexed_from=1) as store, asyncio.timeout(60):
        await store.put("m", ROWS)
        await store.settle()
        for _ in range(8):  # from the sixth on a plan may be one for any vector
            await store.nearest("m", unit(1), 3, None)
        while await store._database.write(scans(), durable=False) < 8:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # counted a moment later


@pytest.mark.soak
@pytest.mark.req("Q-5")
@pytest.mark.timeout(1800)
async def test_of_fifty_tools_among_100_000_the_nearest_are_found(postgres):
    async with pgvectors(postgres) as store:
        assert await recall_in_scope(store, 100_000, 256) >= 0.95


async def recall_in_scope(vectors, count, size):
    """Which part of the ten nearest of 50 tools among so many is found, over 20 queries."""
    chance = numpy.random.default_rng(3)
    matrix = chance.normal(size=(count, size)).astype("<f4")
    matrix /= numpy.linalg.norm(matrix, axis=1, keepdims=True)
    every = [Pair("many", str(n)) for n in range(count)]
    for start in range(0, count, 1000):
        rows = zip(every[start : start + 1000], matrix[start : start + 1000], strict=True)
        await vectors.put("m", [VectorRow(pair, row.tobytes()) for pair, row in rows])
    await vectors.settle()
    scope = numpy.arange(0, count, count // 50)
    found = 0
    for query in matrix[1:21]:
        exact = scope[numpy.argsort(-(matrix[scope] @ query))[:10]]
        near = await vectors.nearest("m", query.tobytes(), 10, [every[n] for n in scope])
        found += len({every[n] for n in exact} & set(pairs(near)))
    return found / 200


class Away:
    """A vector store that is not there."""

    async def put(self, model, rows):
        raise VectorStoreError("away")

    remove = retire_others = put

    async def settle(self):
        raise VectorStoreError("away")

    async def nearest(self, model, query, limit, within):
        raise VectorStoreError("away")


async def test_while_the_store_is_away_memory_is_searched_and_says_so():
    tasks = TaskScope("test")
    world = World(tasks, InProcessModel(), MemoryCache(), store=Away())
    world.updater.follow({"sky": SKY})
    await world.updater.wait_until_current()
    async with asyncio.timeout(30):
        while world.vectors.embedded < 2:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)
    assert (await world.find("weather"))[0] == "sky.forecast"
    assert world.vectors.store_error == "away"
    await tasks.close()


async def test_what_is_embedded_is_given_to_the_store_and_leaves_it_again():
    tasks, store = TaskScope("test"), MemoryVectors(256)
    world = World(tasks, InProcessModel(), MemoryCache(), store=store)
    await world.follow({"sky": SKY})
    query = TABLE.embed(["weather"])[0].tobytes()
    assert pairs(await store.nearest(SEARCH_MODEL, query, 9, None))[0] == ("sky", "forecast")
    assert (await world.find("weather"))[0] == "sky.forecast"
    await world.follow({"sky": SKY[1:]})
    assert pairs(await store.nearest(SEARCH_MODEL, query, 9, None)) == [("sky", "wind")]
    await tasks.close()


async def test_own_tools_are_found_and_not_given_to_the_store():
    tasks, store = TaskScope("test"), MemoryVectors(256)
    world = World(tasks, InProcessModel(), MemoryCache(), store=store, kept_here=frozenset({"own"}))
    await world.follow({"sky": SKY, "own": (tool("umbrella", "Will it rain"),)})
    world.vectors.refresh([Pair("own", "umbrella"), Pair("sky", "wind")])
    await world.vectors.wait_until_embedded()
    query = TABLE.embed(["umbrella"])[0].tobytes()
    found = pairs(await store.nearest(SEARCH_MODEL, query, 9, None))
    assert {pair.server for pair in found} == {"sky"}
    assert (await world.find("umbrella"))[0] == "own.umbrella"
    await tasks.close()


async def test_a_point_has_the_payload_and_the_indexes_that_others_rely_on():
    asked = []

    class Client:
        async def collection_exists(self, name):
            return False

        async def create_collection(self, name, vectors_config):
            asked.append((name, vectors_config.size))

        async def create_payload_index(self, name, field, schema):
            asked.append((field, schema.value))

        async def upsert(self, name, points):
            asked.append(points)

    await QdrantVectors(Client(), describe).put("m", ROWS[:1])
    (name, size), *indexes, points = asked
    assert (name.startswith("junction_tools_"), size) == (True, SIZE)
    assert dict(indexes) == INDEXED
    assert points[0].id == point_id(A)
    assert points[0].payload["source_server_name"] == "one"


async def test_errors_of_the_clients_and_the_database_become_ours():
    class Client:
        async def get_collections(self):
            raise ConnectionError("no")

    with pytest.raises(VectorStoreError, match="ConnectionError"):
        await QdrantVectors(Client(), describe).remove([A])

    class Database:
        async def write(self, script, durable):
            script.close()
            raise StoreUnavailable("no")

    with pytest.raises(VectorStoreError, match="pgvector"):
        await PgVectors(Database()).remove([A])
