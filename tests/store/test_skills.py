"""The shelves of skills and of what tools have them, on both databases."""

import asyncio

import pytest
from tests.store.records import server

from mcp_junction.errors import AlreadyExists, NotFound, VersionConflict
from mcp_junction.store.records import Classified, SkillRecord, ToolDefinitionRow

MAIL = SkillRecord("mail", "Mail", "Send and read messages")
MAPS = SkillRecord("maps", "Maps", "Places and routes")
VECTOR, OTHER = b"\0" * 8, b"\1" * 8


def tools(*names, version=1):
    return [ToolDefinitionRow(name, b"{}", f"{name}-{version}") for name in names]


async def listed(store, name="one", *names):
    """A server with these tools, and all of them by name."""
    record = await store.servers.add(server(name))
    await store.tools.replace(record.id, tools(*names))
    return record.id, {tool.name: tool for tool in await store.tools.all(record.id)}


def said(tool, *skills, embedding=VECTOR, primary=None):
    confidences = {skill: 0.6 / (n + 1) for n, skill in enumerate(skills)}
    return Classified(tool.id, tool.hash, confidences, primary, embedding)


async def behind(store):
    return {skill.id for skill in await store.skills.needing_vector()}


async def follow(store):
    """Make the vector of every skill that is behind."""
    for skill in await store.skills.needing_vector():
        vectors = await store.skills.vectors_of_tools(skill.id)
        await store.skills.save_vector(skill, b"".join(vectors) or b"empty", len(vectors))


@pytest.fixture
async def store(store):
    await store.skills.seed([MAIL, MAPS])
    return store


async def test_the_first_skills_are_put_in_once_and_what_is_removed_stays_away(store, opener):
    assert [skill.id for skill in await store.skills.all()] == ["mail", "maps"]
    assert await behind(store) == set()
    await store.skills.remove("mail")
    again = await opener()
    assert await again.skills.seed([MAIL, MAPS]) is False
    assert [skill.id for skill in await again.skills.all()] == ["maps"]


async def test_processes_that_start_at_one_time_put_them_in_once(opener):
    stores = [await opener() for _ in range(3)]
    done = await asyncio.gather(*(store.skills.seed([MAIL, MAPS]) for store in stores))
    assert sorted(done) == [False, False, True]
    assert len(await stores[0].skills.all()) == 2


async def test_a_skill_is_added_changed_and_removed_under_its_version(store):
    made = await store.skills.add(SkillRecord("news", "News", "What happened"))
    assert (made.version, made.created_at > 0) == (1, True)
    assert await store.skills.get("News") == await store.skills.get("news") == made
    for taken in (SkillRecord("news", "Else", ""), SkillRecord("else", "News", "")):
        with pytest.raises(AlreadyExists):
            await store.skills.add(taken)
    changed = await store.skills.change("news", {"name": "Journals"}, version=1)
    assert (changed.name, changed.description, changed.version) == ("Journals", "What happened", 2)
    with pytest.raises(AlreadyExists):
        await store.skills.change("news", {"name": "Mail"})
    with pytest.raises(VersionConflict):
        await store.skills.change("news", {"name": "Other"}, version=1)
    with pytest.raises(VersionConflict):
        await store.skills.remove("news", version=1)
    assert await store.skills.remove("news", version=2) == 0
    for act in (
        store.skills.get("news"),
        store.skills.change("news", {"name": "x"}),
        store.skills.remove("news"),
    ):
        with pytest.raises(NotFound):
            await act


async def test_what_is_classified_is_no_longer_pending_and_has_its_skills(store):
    server_id, found = await listed(store, "one", "send", "read", "route")
    pending = await store.classification.pending(("", ""), 10)
    assert {one.tool.name for one in pending} == {"send", "read", "route"}
    assert all(one.embedding is None for one in pending)
    written = await store.classification.put(
        server_id,
        [said(found["send"], "mail", "maps", primary="mail"), said(found["route"], "maps")],
    )
    assert written == {found["send"].id, found["route"].id}
    (left,) = await store.classification.pending(("", ""), 10)
    assert left.tool.name == "read"
    send = await store.tools.get(server_id, "send")
    assert (send.skill_ids, send.primary_skill_id) == (["mail", "maps"], "mail")
    assert send.skill_confidences == {"mail": 0.6, "maps": 0.3}
    assert send.is_classified
    assert await store.classification.holding(["maps"]) == {
        (server_id, "send"),
        (server_id, "route"),
    }
    assert await store.classification.holding([]) == set()


async def test_pending_tools_come_in_pages(store):
    await listed(store, "one", "a", "b", "c")
    await listed(store, "two", "d", "e")
    seen, after = [], ("", "")
    while page := await store.classification.pending(after, 2):
        seen += [one.tool.name for one in page]
        after = page[-1].tool.server_id, page[-1].tool.id
    assert sorted(seen) == ["a", "b", "c", "d", "e"]


async def test_what_was_said_of_another_definition_or_skill_is_not_written(store):
    server_id, found = await listed(store, "one", "send", "read")
    await store.tools.replace(server_id, [*tools("send", version=2), *tools("read")])
    assert await store.classification.put(server_id, [said(found["send"], "mail")]) == set()
    assert await store.classification.put(server_id, [said(found["read"], "mail", "none")]) == set()
    assert await behind(store) == set()
    await store.servers.remove(server_id)
    assert await store.classification.put(server_id, [said(found["read"], "mail")]) == set()


async def test_what_was_chosen_among_other_skills_is_not_kept(store):
    server_id, found = await listed(store, "one", "read")
    offered = {skill.id: skill.description for skill in (MAIL, MAPS)}
    given = [said(found["read"], "mail")]
    await store.skills.add(SkillRecord("inbox", "Inbox", "Read the emails in the inbox"))
    assert await store.classification.put(server_id, given, by=offered) == set()
    await store.skills.remove("inbox")
    assert await store.classification.put(server_id, given, by=offered) == {found["read"].id}
    await store.skills.change("maps", {"description": "Roads"})
    assert await store.classification.put(server_id, given, by=offered) == set()


async def test_a_changed_tool_is_pending_without_its_old_vector_and_one_that_is_back_with_it(store):
    server_id, found = await listed(store, "one", "send", "read")
    await store.classification.put(server_id, [said(tool, "mail") for tool in found.values()])
    await store.tools.replace(server_id, tools("send", version=2))
    (one,) = await store.classification.pending(("", ""), 10)
    assert (one.tool.name, one.embedding) == ("send", None)
    assert await store.classification.forget(server_id) == 1
    await store.tools.replace(server_id, tools("read"))
    await store.classification.forget(server_id)
    (one,) = await store.classification.pending(("", ""), 10)
    assert (one.tool.name, one.embedding) == ("read", VECTOR)


async def test_skills_are_marked_when_tools_join_leave_and_come_back(store):
    server_id, found = await listed(store, "one", "send", "read", "route")
    await store.classification.put(
        server_id, [said(found["send"], "mail"), said(found["route"], "maps", embedding=OTHER)]
    )
    assert await behind(store) == {"mail", "maps"}
    await follow(store)
    assert (await behind(store), (await store.skills.get("maps")).embedding) == (set(), OTHER)
    await store.tools.replace(server_id, tools("read", "route"))  # "send" has left
    assert await behind(store) == {"mail"}
    await follow(store)
    mail = await store.skills.get("mail")
    assert (mail.embedding, mail.tool_count) == (b"empty", 0)
    await store.tools.replace(server_id, tools("send", "read", "route"))
    assert await behind(store) == {"mail"}
    await follow(store)
    assert (await store.skills.get("mail")).embedding == VECTOR
    await store.classification.put(server_id, [said(found["route"], "mail")])
    assert await behind(store) == {"mail", "maps"}


@pytest.mark.req("AG-US6-AC7")
async def test_a_removal_marks_the_skills_that_the_servers_tools_had(store):
    server_id, found = await listed(store, "one", "send")
    other_id, others = await listed(store, "two", "route")
    await store.classification.put(server_id, [said(found["send"], "mail")])
    await store.classification.put(other_id, [said(others["route"], "maps", "mail")])
    await follow(store)
    await store.servers.remove(server_id)
    assert await behind(store) == {"mail"}
    assert await store.skills.vectors_of_tools("mail") == [VECTOR]


async def test_what_changes_while_a_vector_is_made_is_not_forgotten(store):
    await store.skills.change("mail", {"description": "Letters"})
    (read,) = await store.skills.needing_vector()
    await store.skills.change("mail", {"description": "Post"})
    await store.skills.save_vector(read, b"of letters", 0)
    (still,) = await store.skills.needing_vector()
    assert still.description == "Post"
    await store.skills.save_vector(still, b"of post", 0)
    await store.skills.save_vector(read, b"of letters", 0)  # somebody slow
    assert (await store.skills.get("mail")).embedding == b"of post"
    assert await behind(store) == set()


async def test_a_removed_skill_leaves_its_tools_to_be_classified_again(store):
    server_id, found = await listed(store, "one", "send", "route")
    await store.classification.put(
        server_id,
        [said(found["send"], "mail", "maps", primary="mail"), said(found["route"], "maps")],
    )
    assert await store.skills.remove("mail") == 1
    send = await store.tools.get(server_id, "send")
    assert (send.skill_ids, send.primary_skill_id, send.is_classified) == (["maps"], None, False)
    assert send.skill_confidences == {"maps": 0.3}
    assert (await store.tools.get(server_id, "route")).is_classified
    await store.classification.put(server_id, [said(send, "maps")])
    assert await store.skills.vectors_of_tools("maps") == [VECTOR, VECTOR]


async def test_nobody_waits_for_each_other_in_a_circle(store):
    """Lists, flags, classifications, skills and removals, all at one time, in every order."""
    names = [f"t{n}" for n in range(12)]
    known = {key: (await listed(store, key, *names)) for key in ("one", "two", "three")}
    await store.skills.add(SkillRecord("news", "News", "What happened"))

    async def lists(server_id):
        for version in range(1, 6):
            left = names[version % 3 :]
            await store.tools.replace(server_id, tools(*reversed(left), version=version))

    async def flags(server_id):
        for turn in range(5):
            marks = {name: (["odd"] * (turn % 2), False) for name in names}
            await store.tools.mark(server_id, marks)

    async def verdicts(server_id):
        for turn in range(5):
            current = await store.tools.all(server_id)
            skills = ("mail", "maps")[:: 1 - 2 * (turn % 2)]
            await store.classification.put(server_id, [said(one, *skills) for one in current])
            await store.classification.forget(server_id)

    async def change():
        for turn in range(5):
            await store.skills.change("maps", {"description": f"Maps {turn}"})
            await follow(store)
        await store.skills.remove("mail")

    works = [
        work(server_id) for work in (lists, flags, verdicts) for server_id, _ in known.values()
    ]
    await asyncio.gather(*works, change())
    assert {skill.id for skill in await store.skills.all()} == {"maps", "news"}
    for server_id, _ in known.values():
        assert not any("mail" in one.skill_ids for one in await store.tools.all(server_id))
        await store.servers.remove(server_id)
    await follow(store)
    assert (await store.skills.get("maps")).tool_count == 0


async def test_a_vector_of_before_a_change_is_not_stored(store):
    before = await store.skills.get("maps")
    after = await store.skills.change("maps", {"description": "Roads"})
    await store.skills.save_vector(before, b"late", 1)
    assert (await store.skills.get("maps")).embedding is None
    await store.skills.save_vector(after, b"new", 0)
    assert (await store.skills.get("maps")).embedding == b"new"
