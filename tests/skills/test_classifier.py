"""Which skills a tool is given, how many, and which of them is the primary one."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.search.static_table import MODEL, stack_vectors
from mcp_junction.skills.classifier import Subject, TaxonomySkill, choose_skills, taxonomy
from mcp_junction.skills.features import make_text, read_tool
from mcp_junction.skills.offline import (
    LocalModel,
    TrainedModel,
    ZeroShot,
    embed_words,
    find_clusters,
)

OFFLINE = LocalModel()


def subject(text):
    name, _, words = text.partition(". ")
    found = make_text(name, words)
    return Subject(name, found, embed_words([found.embedded])[0])


@pytest.mark.req("AG-US3-AC2", "AG-US3-AC3")
@given(st.lists(st.floats(0, 1), min_size=1, max_size=31))
def test_a_verdict_has_one_to_three_skills_the_likeliest_first(confidences):
    said = choose_skills({f"s{n}": confidence for n, confidence in enumerate(confidences)})
    values = list(said.confidences.values())
    assert 1 <= len(values) <= 3
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(max(confidences), abs=1e-4)
    best = next(iter(said.confidences))
    assert said.primary == (best if values[0] >= 0.5 else None)


@pytest.mark.req("AG-US3-AC3")
@pytest.mark.parametrize(("confidence", "primary"), [(0.5, "a"), (0.49, None), (1.0, "a")])
def test_the_primary_skill_begins_at_one_half(confidence, primary):
    assert choose_skills({"a": confidence, "b": 0.2}).primary == primary


@pytest.mark.parametrize(
    ("text", "skill"),
    [
        ("send email. Send an email message to somebody", "communication"),
        ("get forecast. The weather forecast for a place", "weather-environment"),
        ("query. Run an SQL query on a table of the database", "databases"),
        ("git commit. Commit the staged changes to the repository", "version-control"),
    ],
)
def test_plain_tools_have_the_plain_skill(text, skill):
    (said,) = OFFLINE.classify([subject(text)], taxonomy())
    assert said.primary == skill
    assert said.own == said.confidences, "no server has a part in it"


def test_a_new_description_counts_at_once():
    classifier = OFFLINE.classify
    tool = subject("bake bread")
    first = [
        TaxonomySkill("one", "One", "Baking bread and cakes"),
        TaxonomySkill("two", "Two", "Tax law"),
    ]
    second = [
        TaxonomySkill("one", "One", "Tax law"),
        TaxonomySkill("two", "Two", "Baking bread and cakes"),
    ]
    assert classifier([tool], first)[0].primary == "one"
    assert classifier([tool], second)[0].primary == "two"
    assert classifier([tool], first[:1])[0].confidences == {"one": 1.0}


def test_a_removed_skill_leaves_its_share_to_no_other():
    tool = subject("send email. Send an email message to somebody")
    (before,) = OFFLINE.classify([tool], taxonomy())
    left = [skill for skill in taxonomy() if skill.id != "communication"]
    (after,) = OFFLINE.classify([tool], left)
    assert before.primary == "communication"
    assert after.primary is None
    assert 1 <= len(after.confidences) <= 3


@pytest.mark.req("K-1")
def test_a_vague_tool_has_the_skill_of_its_server_and_keeps_its_own_verdict():
    vague = subject("get item. Get an item by its id")
    names = ("list_repositories", "create_pull_request", "merge_branch", "get_commit")
    server = make_text("github", "Git repositories, branches and pull requests")
    pooled = OFFLINE.pool(server, [make_text(name) for name in names])
    (alone,) = OFFLINE.classify([vague], taxonomy())
    (said,) = OFFLINE.classify([vague], taxonomy(), pooled)
    assert said.primary == "version-control"
    assert said.own == alone.confidences != said.confidences


@pytest.mark.req("K-1")
def test_a_plain_tool_keeps_its_skill_on_a_server_of_another_kind():
    plain = subject("get forecast. The weather forecast for a place, with temperature and rain")
    names = ("list_repositories", "create_pull_request", "run_sql_query", "send_email")
    pooled = OFFLINE.pool(make_text("tools", "Many tools"), [make_text(name) for name in names])
    (said,) = OFFLINE.classify([plain], taxonomy(), pooled)
    assert next(iter(said.confidences)) == "weather-environment"


@pytest.mark.req("K-1")
def test_the_weights_belong_to_the_table_and_the_taxonomy_that_are_shipped():
    trained = TrainedModel.load()  # it refuses those of another table than MODEL
    assert MODEL
    assert dict(zip(trained.skills, trained.descriptions, strict=True)) == {
        skill.id: skill.description for skill in taxonomy()
    }


@pytest.mark.parametrize("definition", [b"", b"[]", b'{"inputSchema": 7}', b'{"description": 7}'])
def test_a_definition_that_makes_no_sense_is_read_by_its_name(definition):
    assert read_tool("sendEmail", definition) == make_text("sendEmail")
    assert read_tool("sendEmail", definition).embedded == "send Email. "


def test_tools_that_are_alike_are_one_cluster():
    bees = [f"hive {n}. Inspect the beehive and its honey frames" for n in range(4)]
    alone = ["pay. Pay an invoice", "rain. Rain radar of a town"]
    vectors = [subject(text).embedding for text in [*bees, *alone]]
    servers = ["a", "b", "c", "d", "e", "f"]
    assert [sorted(group) for group in find_clusters(vectors, servers)] == [[0, 1, 2, 3]]
    assert find_clusters([], []) == []


def test_without_skills_nothing_is_said():
    assert OFFLINE.classify([subject("x")], []) == [None]
    assert OFFLINE.classify([], taxonomy()) == []


def test_the_skills_to_begin_with_are_named_once_and_described():
    skills = taxonomy()
    assert len(skills) == len({one.id for one in skills}) == len({one.name for one in skills}) == 31
    assert all(one.description.isprintable() and len(one.description) > 20 for one in skills)


def test_a_verdict_is_to_the_last_digit_the_same_whatever_else_is_judged_with_it():
    words = [
        "file",
        "mail",
        "song",
        "map",
        "note",
        "send",
        "find",
        "list",
        "zoo",
        "invoice",
        "lake",
    ]
    chance = random.Random(7)
    names = [" ".join(chance.choices(words, k=chance.randint(1, 9))) for _ in range(40)]
    tools = [subject(f"{name}. {name} of {words[n % 9]}") for n, name in enumerate(names)]
    model, guess = TrainedModel.load(), ZeroShot()

    def judge(some):
        vectors = stack_vectors([tool.embedding for tool in some])
        return model.judge([tool.text for tool in some], vectors), guess(vectors, taxonomy())

    together = judge(tools)
    for n, tool in enumerate(tools):
        fewer = judge([tool, *tools[:n]])
        for said, alone in zip(together, fewer, strict=True):
            assert said[n].tobytes() == alone[0].tobytes()
