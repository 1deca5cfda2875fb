"""SemanticIndex: vectors follow the tools, are computed once, survive, and may be missing."""

import asyncio
from array import array

import pytest
from tests.fakes.memory_cache import MemoryCache
from tests.search.tools import tool

from mcp_junction.errors import ModelUnavailable, StoreUnavailable
from mcp_junction.protocol.names import Pair
from mcp_junction.search.index_updater import IndexUpdater
from mcp_junction.search.ranker_cache import MOST_HELD, KeyedMask, KeyedSkills, RankRequest
from mcp_junction.search.semantic import WARM_FROM, SemanticIndex
from mcp_junction.search.vectors import HIERARCHICAL, SEMANTIC, SkillGroup
from mcp_junction.search.words import split_clauses, tool_text
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.fakes import InProcessModel

BOUND = 30
MAIL = (tool("send_email", "Send a message to somebody"), tool("read_inbox", "Show new messages"))
SKY = (tool("forecast", "Will it rain tomorrow"), tool("wind", "How strong the wind is"))


class Counting(InProcessModel):
    """A process that notes what it embeds, and can be lost."""

    def __init__(self):
        super().__init__()
        self.texts = []
        self.error = None

    async def embed(self, texts):
        if self.error is not None:
            raise self.error
        self.texts += texts
        return await super().embed(texts)

    async def rank(self, job):
        if self.error is not None:
            raise self.error
        return await super().rank(job)

    def restart(self):
        """Begin again with nothing, as another process would."""
        self.__dict__.update(InProcessModel().__dict__)


class World:
    def __init__(self, tasks, process, cache, **more):
        self.process = process
        self.vectors = SemanticIndex(tasks, process, cache, retry=0.01, **more)
        self.updater = IndexUpdater(tasks, self.vectors)

    async def follow(self, offers, titles=None):
        self.updater.follow(offers, titles)
        async with asyncio.timeout(BOUND):
            await self.updater.wait_until_current()
            await self.vectors.wait_until_embedded()

    def request(self, query, admits=lambda pair: True, strategy="hybrid", skills=None):
        index = self.updater.index
        mask = index.mask_of(
            pair for n in range(index.size) if (pair := index.pair(n)) and admits(pair)
        )
        keyed = KeyedMask.make(mask)
        return RankRequest(query, 10, strategy, index, keyed, keyed, skills, len(index) > sum(mask))

    async def find(self, query, *admits, **more):
        ranked = await self.vectors.rank(self.request(query, *admits, **more))
        if ranked is None:
            return None
        return [".".join(self.updater.index.pair(one.number)) for one in ranked.tools]


@pytest.fixture
async def world():
    tasks = TaskScope("test")
    cache = MemoryCache()

    def make(process=None, **more):
        return World(tasks, process or Counting(), cache, **more)

    yield make
    await tasks.close()


@pytest.mark.req("Q-1")
async def test_a_tool_is_found_by_what_it_means_without_any_of_its_words(world):
    here = world()
    await here.follow({"mail": MAIL, "sky": SKY})
    assert (await here.find("write a letter to a friend"))[0] == "mail.send_email"
    assert (await here.find("weather"))[0] == "sky.forecast"
    assert here.updater.index.search("weather", 5, lambda pair: True) == []


@pytest.mark.req("Q-2")
async def test_only_what_changed_is_embedded_again(world):
    here = world()
    await here.follow({"mail": MAIL, "sky": SKY})
    assert len(here.process.texts) == 4
    here.process.texts.clear()
    await here.follow({"mail": MAIL, "sky": (SKY[0], tool("wind", "Speed and direction"))})
    assert here.process.texts == ["wind. Speed and direction"]
    here.process.texts.clear()
    await here.follow({"mail": MAIL, "sky": SKY}, {"mail": "Post Office"})
    assert sorted(here.process.texts) == [
        "Post Office: read inbox. Show new messages",
        "Post Office: send email. Send a message to somebody",
        "wind. How strong the wind is",
    ]


@pytest.mark.req("Q-2")
async def test_vectors_survive_a_restart_and_a_lost_process(world):
    await world().follow({"mail": MAIL, "sky": SKY})
    here = world()
    await here.follow({"mail": MAIL, "sky": SKY})
    assert here.process.texts == []
    assert (await here.find("weather"))[0] == "sky.forecast"
    here.process.restart()
    assert (await here.find("weather"))[0] == "sky.forecast"
    assert here.process.texts == []


async def test_a_tool_that_left_is_not_ranked_and_its_number_is_not_mixed_up(world):
    here = world()
    await here.follow({"mail": MAIL, "sky": SKY})
    await here.find("weather")
    await here.follow({"mail": MAIL})
    await here.follow({"mail": MAIL, "maps": (tool("route", "The way to drive"),)})
    found = await here.find("umbrella rain", strategy=SEMANTIC)
    assert not any(name.startswith("sky") for name in found)
    assert (await here.find("navigate by car"))[0] == "maps.route"


@pytest.mark.req("Q-4")
async def test_what_is_not_admitted_has_no_influence_on_any_score(world):
    here, alone = world(), world(Counting())
    hidden = tuple(tool(f"mail{n}", "umbrella rain message") for n in range(20))
    await here.follow({"mail": (*MAIL, *hidden), "sky": SKY, "secret": hidden})
    await alone.follow({"mail": MAIL, "sky": SKY})
    shown = {Pair("mail", one.name) for one in MAIL} | {Pair("sky", one.name) for one in SKY}

    def scores(where, ranked):
        return {
            where.updater.index.pair(t.number): pytest.approx(t.score, 1e-5) for t in ranked.tools
        }

    query = "rain message"
    mixed = await here.vectors.rank(here.request(query, shown.__contains__))
    assert scores(here, mixed) == scores(alone, await alone.vectors.rank(alone.request(query)))
    assert len(mixed.tools) >= 2


async def test_the_process_scores_words_as_the_index_does(world):
    here = world()
    offers = {f"s{n}": (tool(f"t{n}", "rain message " * (n % 3 + 1), "wind"),) for n in range(30)}
    await here.follow(offers)
    await here.follow({**offers, "s3": (), "s4": (tool("t4", "rain and snow"),)})
    index, query = here.updater.index, "snow rain penguin message"
    for some in (range(0, 30, 2), range(30)):
        shown = {f"s{n}" for n in some}
        request = here.request(query, lambda pair, shown=shown: pair.server in shown)
        expected = index.score(query, request.admitted.mask)
        ranked = await here.vectors.rank(request._replace(limit=100))
        parts = {one.number: one.words for one in ranked.tools if one.words}
        best = max(expected.values())
        given = max(parts.values())
        assert parts == {n: pytest.approx(given * s / best, 1e-4) for n, s in expected.items()}


async def test_what_the_process_holds_for_searches_is_given_again_when_it_was_lost(world):
    here = world()
    await here.follow({"mail": MAIL, "sky": SKY})
    request = here.request("rain message")
    first = await here.vectors.rank(request)
    here.process.restart()
    assert await here.vectors.rank(request) == first
    for _ in range(MOST_HELD):  # which takes the place of what was held
        await here.find("rain message")
    assert await here.vectors.rank(request) == first


async def test_entries_that_were_taken_out_of_the_index_are_not_held_any_longer(world, monkeypatch):
    monkeypatch.setattr("mcp_junction.search.index._LEAST_GONE", 1)
    here = world()
    await here.follow({"mail": MAIL, "sky": SKY})
    assert (await here.find("message"))[0].startswith("mail")
    await here.follow({"sky": SKY})
    await here.follow(
        {"sky": SKY, "post": (tool("stamp", "Price of a letter"), tool("rain_gauge"))}
    )
    ranked = await here.vectors.rank(here.request("message rain"))
    words = [here.updater.index.pair(one.number).name for one in ranked.tools if one.words]
    assert sorted(words) == ["forecast", "rain_gauge"]


async def test_while_the_model_is_away_words_have_to_do_and_then_vectors_follow(world):
    here = world()
    here.process.error = ModelUnavailable("away")
    here.updater.follow({"sky": SKY})
    await here.updater.wait_until_current()
    assert await here.find("weather") is None
    assert here.vectors.embedded == 0
    here.process.error = None
    async with asyncio.timeout(BOUND):
        await here.vectors.wait_until_embedded()
    assert (await here.find("weather"))[0] == "sky.forecast"


async def test_nothing_stays_in_memory_of_tools_that_left(world):
    here = world()
    await here.follow({"mail": MAIL, "sky": SKY})
    await here.follow({"mail": MAIL[:1]})
    ((server, _), kept), *others = here.vectors._cache._kept.items()
    assert (server, list(kept), others) == ("mail", [MAIL[0].name], [])


async def test_nothing_stays_in_memory_of_tools_that_leave_while_they_are_embedded(world):
    here = world()
    embed = here.process.embed

    async def leave(texts):
        here.updater.follow({})
        await here.updater.wait_until_current()
        return await embed(texts)

    here.process.embed = here.vectors._feeds[0].embed = leave
    await here.follow({"sky": SKY})
    assert here.vectors._cache._kept == {}


async def test_a_store_that_is_away_delays_the_vectors(world):
    here = world()
    real, refused = here.vectors._cache.save, []

    async def save(*given):
        if not refused:
            refused.append(given)
            raise StoreUnavailable("away")
        await real(*given)

    here.vectors._cache.save = save
    await here.follow({"sky": SKY})
    assert refused
    assert (await here.find("weather"))[0] == "sky.forecast"


async def test_a_search_does_not_wait_long_for_vectors(world):
    here = world(patience=0.01)
    await here.follow({"sky": SKY})
    still = asyncio.Event()
    real = here.process.rank

    async def rank(job):
        await still.wait()
        return await real(job)

    here.process.rank = rank
    assert await here.find("weather") is None
    still.set()
    here.vectors._patience = BOUND
    assert (await here.find("weather"))[0] == "sky.forecast"


async def test_a_first_search_goes_by_words_while_the_process_is_started_ahead(world):
    """With few tools nobody starts it ahead: then it is waited for."""
    here = world(patience=BOUND)
    started, rank = asyncio.Event(), here.process.rank

    async def slow(job):
        await started.wait()
        return await rank(job)

    here.process.rank = slow
    many = tuple(tool(f"tool{n}", "Something else") for n in range(WARM_FROM))
    here.updater.follow({"sky": SKY, "many": many})
    async with asyncio.timeout(BOUND):
        await here.updater.wait_until_current()
        assert await here.find("weather") is None
    started.set()
    await here.follow({"sky": SKY, "many": many})
    assert (await here.find("weather"))[0] == "sky.forecast"


async def test_the_process_that_ranks_is_started_when_there_are_many_tools_and_only_then(world):
    here = world()
    real, asked = here.process.rank, []

    async def rank(job):
        asked.append(job)
        return await real(job)

    here.process.rank = rank
    few = tuple(tool(f"tool{n}", "Something else") for n in range(WARM_FROM - 3))
    await here.follow({"sky": SKY, "few": few})
    assert asked == [], "a search starts it"
    await here.follow({"sky": SKY, "few": few, "mail": MAIL})
    assert sum(len(job.numbers) for job in asked) == WARM_FROM + 1
    asked.clear()
    await here.follow({"sky": SKY, "few": few, "mail": MAIL[:1]})
    await here.follow({"sky": SKY, "few": few, "mail": MAIL})
    assert asked == [], "it may have ended since, and ends when nobody searches"
    assert (await here.find("weather"))[0] == "sky.forecast"


async def test_a_process_that_does_not_start_before_it_is_needed_delays_nothing(world):
    here = world(embedder=Counting())
    here.process.error = ModelUnavailable("away")
    await here.follow({"many": tuple(tool(f"tool{n}", "One") for n in range(WARM_FROM))})
    assert here.vectors.embedded == WARM_FROM
    here.process.error = None
    assert await here.find("tool7")


async def test_hierarchical_takes_the_best_three_skills_and_the_unclassified(world):
    here = world()
    kinds = ("weather", "mail", "maps", "music", "cooking")
    offers = {kind: (tool(kind, f"Everything about {kind}"),) for kind in kinds}
    await here.follow({**offers, "odd": (tool("odd", "Cooking, and nobody knows what else"),)})
    index = here.updater.index
    skills = [
        SkillGroup(
            kind, f"All about {kind}", array("I", [index.number(Pair(kind, kind))]).tobytes()
        )
        for kind in kinds
    ]
    keyed = KeyedSkills.make(skills)
    ranked = await here.vectors.rank(
        here.request("weather forecast", strategy=HIERARCHICAL, skills=keyed)
    )
    assert len(ranked.skills) == 3
    assert next(iter(ranked.skills)) == "weather"
    found = {index.pair(one.number).server for one in ranked.tools}
    assert found <= {*ranked.skills, "odd"}
    assert index.pair(ranked.tools[0].number).server == "weather"


@pytest.mark.parametrize("query", ["\x00\x01\x02", "\ufffd", "😀😀😀", "   ", "x" * 1000, "\u202e"])
async def test_a_query_without_a_meaning_finds_nothing_by_it(world, query):
    here = world()
    await here.follow({"mail": MAIL, "sky": SKY})
    assert await here.find(query) == []


def test_clauses_have_three_words_at_least_and_are_24_at_most():
    assert split_clauses("Find the file, then mail it to Ann and go") == [
        "Find the file",
        "mail it to Ann",
    ]
    assert len(split_clauses("one two three. " * 100)) == 24
    assert split_clauses("short") == []


def test_a_tools_text_has_its_servers_title_and_the_beginning_of_its_description():
    assert tool_text("Post", "sendEmail", "Sends. " * 100).startswith("Post: send Email. Sends.")
    assert tool_text("", "x", "y" * 500) == "x. " + "y" * 200
