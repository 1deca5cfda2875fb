"""Skills that are suggested for tools that fit none: found, approved, rejected."""

import asyncio

import pytest
from tests.plugin_registry import ADMIN
from tests.registry.bees import BEES
from tests.registry.toolbox import tool

from mcp_junction.errors import AlreadyExists, NotFound
from mcp_junction.skills.features import describe_group, make_text


async def settled(running) -> list:
    """The tools, once all are classified and nothing is left to do."""
    work = running.registry.skills.classifier
    work.begin()
    async with asyncio.timeout(20):
        while True:
            work.wake()
            await work.wait_until_done()
            tools = await running.store.tools.all()
            if tools and all(one.is_classified for one in tools):
                return tools


async def suggested(running, status: str = "pending") -> list:
    found = await running.registry.skills.classifier.suggestions.all()
    return [one for one in found if one.status == status]


@pytest.mark.req("K-4", "AG-US3-AC8")
async def test_a_cluster_that_fits_no_skill_is_suggested_approved_and_ends_classified(
    platform, toolbox
):
    running = await platform()
    await running.add("apiary", await toolbox(BEES))
    await running.add("mail", await toolbox([tool("send_email", "Send an email message")]))
    await settled(running)
    (found,) = await suggested(running)
    tools = {one.id: one.name for one in await running.store.tools.all()}
    behind = {tools[one] for one in found.tool_ids}
    assert behind <= {one["name"] for one in BEES}
    assert len(behind) >= 15
    assert "bee" in found.name.lower() or "hive" in found.name.lower()
    events = await running.events("skill.suggested")
    assert [event.data["id"] for event in events] == [found.id]

    skill = await running.registry.skills.approve(found.id, ADMIN)
    for one in await settled(running):
        if one.name in behind:
            assert (one.primary_skill_id, one.classified_by) == (skill.id, "review")
        if one.name == "send_email":
            assert one.primary_skill_id == "communication"
    assert [one.skill_id for one in await suggested(running, "approved")] == [skill.id]
    assert await suggested(running) == []
    with pytest.raises(AlreadyExists):
        await running.registry.skills.approve(found.id, ADMIN)

    running = await platform()
    box = await toolbox([tool("inspect_colony", "Inspect a bee colony in its hive for diseases")])
    await running.add("another", box)
    (new,) = [one for one in await settled(running) if one.name == "inspect_colony"]
    assert skill.id in new.skill_ids, "others that are like them get it, too"


@pytest.mark.req("K-4")
async def test_what_was_rejected_is_not_suggested_again(single, toolbox):
    running = await single()
    box = await toolbox(BEES[:-1])
    await running.add("apiary", box)
    await settled(running)
    (found,) = await suggested(running)
    await running.registry.skills.reject(found.id, ADMIN)
    box.tools = BEES
    await running.registry.refresh("apiary", ADMIN)
    await settled(running)
    assert await suggested(running) == []
    with pytest.raises(AlreadyExists):
        await running.registry.skills.approve(found.id, ADMIN)
    with pytest.raises(NotFound):
        await running.registry.skills.reject("nobody", ADMIN)
    acts = [row.action for row in await running.rows(kind="intent")]
    assert "skill.reject" in acts


@pytest.mark.req("K-4")
async def test_a_suggestion_goes_with_its_tools(single, toolbox):
    running = await single()
    await running.add("apiary", await toolbox(BEES))
    await settled(running)
    assert len(await suggested(running)) == 1
    await running.add("mail", await toolbox([tool("send_email", "Send an email message")]))
    await running.registry.remove("apiary", ADMIN)
    box = await toolbox([tool("get_forecast", "The weather forecast of a place")])
    await running.add("weather", box)
    await settled(running)
    assert await suggested(running) == []


def test_a_name_is_made_of_what_the_tools_have_in_common():
    texts = [make_text(one["name"], one["description"]) for one in BEES]
    name, description = describe_group(texts, set())
    assert name
    assert describe_group(texts, {name})[0] not in ("", name)
    assert "inspect_hive" in description
    assert description.isprintable()
    assert describe_group([make_text("get"), make_text("\x1b[0m")], {"Other"})[0] == "Other 2"
