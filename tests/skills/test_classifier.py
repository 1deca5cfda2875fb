"""Which skills a tool is given, how many, and which of them is the primary one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.skills.classifier import Subject, TaxonomySkill, ZeroShot, choose_skills, taxonomy
from mcp_junction.skills.embedder import WordVectors


def subject(text):
    return Subject(text, text, WordVectors()([text])[0])


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
    (said,) = ZeroShot(WordVectors())([subject(text)], taxonomy())
    assert said.primary == skill


def test_a_new_description_counts_at_once():
    classifier = ZeroShot(WordVectors())
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


def test_without_skills_nothing_is_said():
    assert ZeroShot(WordVectors())([subject("x")], []) == [None]
    assert ZeroShot(WordVectors())([], taxonomy()) == []


def test_the_skills_to_begin_with_are_named_once_and_described():
    skills = taxonomy()
    assert len(skills) == len({one.id for one in skills}) == len({one.name for one in skills}) == 31
    assert all(one.description.isprintable() and len(one.description) > 20 for one in skills)
