"""Skills at run time: tools are classified as they come, skills follow who comes and goes."""

import asyncio
import os
import signal

import numpy
import pytest
from tests.plugin_registry import ADMIN
from tests.registry.toolbox import tool, until

from mcp_junction.errors import StoreUnavailable
from mcp_junction.registry import background_classifier, verdicts
from mcp_junction.registry.background_classifier import BackgroundClassifier
from mcp_junction.search import static_table
from mcp_junction.search.static_table import mean, to_floats
from mcp_junction.skills.features import read_tool
from mcp_junction.skills.offline import embed_words
from mcp_junction.skills.worker import ModelWorker, WorkerProcess
from mcp_junction.store.records import REVIEW, Classified
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.fakes import InProcessModel

MAIL = [
    tool("send_email", "Send an email message to somebody"),
    tool("read_email", "Read the emails in the inbox"),
]
WEATHER = [tool("get_forecast", "Get the weather forecast for a place")]
POST = [tool("post_message", "Send a message to a chat channel, with email notifications")]


def classifying(running) -> BackgroundClassifier:
    return running.registry.skills.classifier


async def classified(running):
    """Wait until every tool is, and every skill has followed."""
    work = classifying(running)
    work.begin()
    async with asyncio.timeout(20):
        while True:
            await work.wait_until_done()
            tools = await running.store.tools.all()
            if (
                all(one.is_classified for one in tools)
                and not await running.store.skills.needing_vector()
            ):
                return tools
            await asyncio.sleep(0.02)


def near(left: bytes, right: bytes) -> bool:
    return to_floats(left) == pytest.approx(to_floats(right), abs=1e-6)


async def as_it_should_be(running, skill) -> bytes:
    """The vector of a skill, computed from what its tools say."""
    members = [one for one in await running.store.tools.all() if skill.id in one.skill_ids]
    texts = [read_tool(one.name, one.definition).embedded for one in members]
    return mean(embed_words(texts or [skill.description]))


@pytest.mark.req("AG-US3-AC1", "AG-US3-AC2", "AG-US3-AC3", "AG-US3-AC5")
async def test_what_is_discovered_is_classified_and_told(platform, toolbox):
    running = await platform()
    record = await running.add("mail", await toolbox([*MAIL, *WEATHER]))
    tools = await classified(running)
    assert len(tools) == 3
    for one in tools:
        confidences = [one.skill_confidences[skill] for skill in one.skill_ids]
        assert 1 <= len(confidences) <= 3
        assert confidences == sorted(confidences, reverse=True)
        assert all(0 < confidence <= 1 for confidence in confidences)
        assert one.primary_skill_id == (one.skill_ids[0] if confidences[0] >= 0.5 else None)
    best = {one.name: one.skill_ids[0] for one in tools}
    assert best["send_email"] == "communication"
    own = {one.name: next(iter(one.own_skill_confidences)) for one in tools}
    assert own["get_forecast"] == "weather-environment", "though its server is about mail"
    events = await running.events("tool.classified")
    assert {event.subject for event in events} == {record.id}
    told = {one["name"]: one["skill_ids"] for event in events for one in event.data["tools"]}
    assert told == {one.name: one.skill_ids for one in tools}
    assert running.registry.state().classified_tools == 3


@pytest.mark.req("AG-US6-AC7", "K-5")
async def test_a_removal_recomputes_the_skills_concerned_and_no_others(platform, toolbox):
    running = await platform()
    await running.add("mail", await toolbox(MAIL))
    await running.add("chat", await toolbox([*POST, *WEATHER]))
    await classified(running)
    before = {skill.id: skill for skill in await running.registry.skills.all()}
    tools = await running.store.tools.all()
    having = [one.name for one in tools if "communication" in one.skill_ids]
    assert before["communication"].tool_count == len(having) >= 3
    for skill in before.values():
        assert near(skill.embedding, await as_it_should_be(running, skill))
    concerned = {s for one in await running.registry.tools.all("chat") for s in one.skill_ids}
    await running.registry.remove("chat", ADMIN)
    await classified(running)
    after = {skill.id: skill for skill in await running.registry.skills.all()}
    for skill in after.values():
        assert near(skill.embedding, await as_it_should_be(running, skill))
    assert {i for i, skill in after.items() if skill.marked != before[i].marked} == concerned
    assert after["communication"].embedding != before["communication"].embedding
    emptied = after["weather-environment"]
    assert emptied.tool_count == 0
    assert near(emptied.embedding, embed_words([emptied.description])[0])


@pytest.mark.req("K-5", "AG-US3-AC5")
async def test_skills_follow_tools_that_come_go_come_back_and_change(platform, toolbox):
    running = await platform()
    rain, mail = (
        tool("get", "The weather forecast: rain, wind"),
        tool("get", "Send an email message"),
    )
    box = await toolbox([*MAIL, rain])
    await running.add("mail", box)
    for tools, expected in (
        (MAIL, 0),
        ([*MAIL, rain], 1),
        ([*MAIL, mail], 0),
        ([*MAIL, rain, *WEATHER], 2),
    ):
        box.tools = tools
        await running.registry.refresh("mail", ADMIN)
        await classified(running)
        for skill in await running.registry.skills.all():
            assert near(skill.embedding, await as_it_should_be(running, skill)), skill.id
        weather = await running.registry.skills.get("weather-environment")
        assert weather.tool_count == expected
    await running.registry.disconnect("mail", ADMIN, force=True)
    await classified(running)
    assert await running.registry.skills.get("weather-environment") == weather


@pytest.mark.req("K-3")
async def test_every_tool_is_classified_whatever_it_says(platform, toolbox):
    odd = [
        tool("\u5929\u6c14", "\u67e5\u8be2\u5929\u6c14"),
        tool("x", ""),
        tool("\U0001f600", "\U0001f600" * 500),
        tool("silent", description=None),
        tool("long", "weather " * 100_000),
    ]
    running = await platform()
    await running.add("many", await toolbox([tool(f"t{n}", f"item {n}") for n in range(45)] + odd))
    tools = await classified(running)
    assert len(tools) == 50
    assert all(one.is_classified for one in tools)
    assert all(1 <= len(one.skill_ids) <= 3 for one in tools)


class OlderModel(InProcessModel):
    """A model with another table."""

    async def embed(self, texts):
        return [(-numpy.frombuffer(one, "<f4")).tobytes() for one in await super().embed(texts)]


@pytest.mark.req("K-5", "Q-2")
async def test_after_an_upgrade_with_another_table_no_vector_of_the_old_one_is_left(
    platform, toolbox, monkeypatch
):
    older = "static-256-older"
    with monkeypatch.context() as patched:
        for module in (background_classifier, verdicts):
            patched.setattr(module, "MODEL", f"{older}/tool")
        patched.setattr(background_classifier, "TABLE", older)
        running = await platform()
        classifying(running).set_model(OlderModel())
        mail = await running.add("mail", await toolbox([*MAIL, *WEATHER]))
        first, *_ = await classified(running)
        approved = Classified(
            first.id, first.hash, {"maps-travel": 0.9}, "maps-travel", None, {}, REVIEW
        )
        assert await running.store.classification.put(mail.id, [approved], f"{older}/tool")
        await classified(running)
    running = await platform()
    await running.until("mail", "CONNECTED")
    before = len(await running.events("tool.classified"))
    tools = await classified(running)
    told = (await running.events("tool.classified"))[before:]
    again = [one["name"] for event in told for one in event.data["tools"]]
    assert sorted(again) == sorted(one.name for one in tools if one.id != first.id)
    assert {one.id: one.skill_ids for one in tools}[first.id] == ["maps-travel"], "it was approved"
    for skill in await running.registry.skills.all():
        assert near(skill.embedding, await as_it_should_be(running, skill)), skill.id
    assert await running.store.vectors.of_server(mail.id, f"{older}/tool") == []
    assert not await running.store.vectors.renew(static_table.KIND, static_table.MODEL), "done"


class Moody:
    """A classifier that fails, wholly or for one tool, as long as it is in the mood."""

    def __init__(self, classifier, spares=""):
        self.classifier = classifier
        self.spares = spares
        self.is_well = False
        self.asked = 0

    async def __call__(self, subjects, skills, pooled):
        self.asked += 1
        if not self.is_well and not self.spares:
            raise RuntimeError("the model is away")
        found = await self.classifier(subjects, skills, pooled)
        named = zip(subjects, found, strict=True)
        return [said if self.is_well or one.name != self.spares else None for one, said in named]


@pytest.mark.req("AG-US3-AC4", "K-3")
@pytest.mark.parametrize("fails", ["all", "one"])
async def test_what_fails_stays_unclassified_and_findable_and_is_tried_again(
    platform, toolbox, fails
):
    running = await platform()
    work = classifying(running)
    spares = "read_email" if fails == "one" else ""
    work.classifier = moody = Moody(work.classifier, spares)
    work.retry = 0.05
    await running.add("mail", await toolbox(MAIL))
    work.begin()
    await until(lambda: moody.asked >= 3)
    by_name = {one.name: one for one in await running.registry.tools.all("mail")}
    assert not by_name["read_email"].is_classified
    assert by_name["send_email"].is_classified is (fails == "one")
    hits = await running.find("read the inbox", 5)
    assert "read_email" in [hit.pair.name for hit in hits]
    moody.is_well = True
    assert all(one.is_classified for one in await classified(running))


@pytest.mark.req("AG-US3-AC4", "AG-US3-AC7", "K-3")
async def test_tools_wait_out_crashes_of_the_models_process_and_are_classified_after_them(
    single, toolbox
):
    running = await single()
    tasks, work, started = TaskScope("test"), classifying(running), []

    async def start():
        process = await WorkerProcess.start()
        started.append(process)
        if len(started) < 3:
            os.kill(process.pid, signal.SIGKILL)
        return process

    work.set_model(worker := ModelWorker(tasks, first_pause=0.01, start=start))
    work.retry = 0.05
    await running.add("many", await toolbox([tool(f"t{n}", f"item {n}") for n in range(50)]))
    work.begin()
    await until(lambda: worker.failures >= 1)
    hits = await running.find("item 7", 5)
    assert "t7" in [hit.pair.name for hit in hits]
    assert len(await classified(running)) == 50
    assert worker.failures == 2
    await tasks.close()


async def test_what_was_left_undone_is_done_by_the_next_start_and_no_more(platform, toolbox):
    running = await platform()
    await running.add("mail", await toolbox(MAIL))
    await until(lambda: running.registry.find("mail").tool_count == 2)
    await running.registry.refresh("mail", ADMIN)
    assert not any(one.is_classified for one in await running.store.tools.all())  # never begun
    running = await platform()
    done = await classified(running)
    running = await platform()
    work = classifying(running)

    class Never(InProcessModel):
        async def embed(self, texts):
            raise AssertionError("there is nothing to embed")

        classify = average = pool = cluster = embed

    work.set_model(Never())
    work.begin()
    await work.wait_until_done()
    assert work.classified == 2
    assert await running.store.tools.all() == done


async def test_an_outage_of_the_store_is_waited_out(single, toolbox):
    running = await single()
    real, refused = running.store.classification.pending, []

    async def away(*arguments):
        refused.append(arguments)
        if len(refused) < 2:
            raise StoreUnavailable("the store is away")
        return await real(*arguments)

    running.store.classification.pending = away
    await running.add("mail", await toolbox(MAIL))
    assert len(await classified(running)) == 2


async def test_a_service_that_ends_does_not_wait_for_what_is_being_classified(single, toolbox):
    running = await single()
    work = classifying(running)
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(*given):
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    work.classifier = endless
    await running.add("mail", await toolbox(MAIL))
    work.begin()
    await asyncio.wait_for(begun.wait(), 20)
    await asyncio.wait_for(single.stop(), 30)
    assert cancelled.is_set()
    await asyncio.wait_for(work.wait_until_done(), 20)


async def test_a_removed_skill_is_taken_from_its_tools_which_get_another(platform, toolbox):
    running = await platform()
    await running.add("mail", await toolbox(MAIL))
    await classified(running)
    desk = running.registry.skills
    await desk.remove("communication", ADMIN)
    for one in await classified(running):
        assert "communication" not in one.skill_ids
        assert one.skill_ids
    assert "communication" not in {skill.id for skill in await desk.all()}
    running = await platform()
    assert len(await running.registry.skills.all()) == 30, "it does not come back"
    acts = [row.action for row in await running.rows(kind="intent")]
    assert "skill.remove" in acts


async def test_without_any_skill_tools_wait_for_one(single, toolbox):
    running = await single()
    desk = running.registry.skills
    for skill in await desk.all():
        await desk.remove(skill.id, ADMIN)
    await running.add("mail", await toolbox(MAIL))
    classifying(running).begin()
    await classifying(running).wait_until_done()
    assert not any(one.is_classified for one in await running.store.tools.all())
    post = await desk.add("Letters & post", "Send and read email messages", ADMIN)
    assert post.id == "letters-post"
    assert {one.primary_skill_id for one in await classified(running)} == {"letters-post"}
    await desk.change("letters-post", {"description": "Weather"}, ADMIN)
    await desk.classify("mail", ADMIN)
    assert len(await classified(running)) == 2
