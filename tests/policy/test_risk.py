"""How risky a tool is: by its name, its annotations, and the operator's word."""

import pytest
from msgspec import Raw

from mcp_junction.policy.risk import (
    HIGH_RISK_WORDS,
    RiskLevel,
    assess,
    defines_destructive,
    says_destructive,
)


@pytest.mark.parametrize("word", ["write", "delete", "modify", "update", "create"])
@pytest.mark.parametrize("shape", ["{}", "{}_file", "bulk-{}", "re{}d"])
def test_a_word_in_the_name_is_a_high_risk(word, shape):
    for name in (shape.format(word), shape.format(word).upper(), shape.format(word.title())):
        risk = assess(name)
        assert risk.is_high
        assert repr(word) in risk.reason
    assert word in HIGH_RISK_WORDS


@pytest.mark.parametrize("name", ["read", "list_files", "search", "rite", "remove", ""])
def test_other_names_are_a_low_risk(name):
    assert not assess(name).is_high
    assert not assess(name, is_destructive=False).is_high


def test_a_tool_that_says_it_destroys_is_a_high_risk():
    risk = assess("remove", is_destructive=True)
    assert risk.is_high
    assert "destructiveHint" in risk.reason


def test_an_annotation_never_lowers_the_risk():
    assert assess("write_file", is_destructive=False).is_high


def test_the_operators_word_stands_above_all():
    assert assess("read", operator=RiskLevel.HIGH).is_high
    low = assess("delete_all", is_destructive=True, operator=RiskLevel.LOW)
    assert not low.is_high
    assert "operator" in low.reason


def test_a_hint_that_was_given_once_is_a_high_risk_until_the_operator_says_otherwise():
    risk = assess("remove", was_destructive=True)
    assert risk.is_high
    assert "had destructiveHint" in risk.reason
    assert not assess("remove", was_destructive=True, operator=RiskLevel.LOW).is_high


@pytest.mark.parametrize(
    ("annotations", "is_so"),
    [
        ('{"destructiveHint":true,"readOnlyHint":"x"}', True),
        ('{"destructiveHint":false}', False),
        ('{"destructiveHint":"true"}', False),
        ("null", False),
        ("[1]", False),
    ],
)
def test_the_hint_is_read_whatever_else_a_server_writes(annotations, is_so):
    assert says_destructive(Raw(annotations)) is is_so
    assert defines_destructive(f'{{"annotations":{annotations}}}'.encode()) is is_so


def test_a_definition_without_annotations_or_that_cannot_be_read_says_nothing():
    assert not any(map(defines_destructive, (None, b"{}", b"[]", b"{")))
    assert not says_destructive(None)
