"""How risky a tool is: by its name, its annotations, and the operator's word."""

import pytest

from mcp_junction.policy.risk import HIGH_RISK_WORDS, RiskLevel, assess


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
