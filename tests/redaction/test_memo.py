"""Memo: what was asked before is not asked again, and what is kept is bounded."""

from mcp_junction.redaction.detect import LONGEST, MOST, Memo


def test_a_text_is_asked_about_once():
    asked: list[str] = []
    memo = Memo(lambda text: asked.append(text) or len(text))
    assert [memo["abc"], memo["abc"], memo["d"]] == [3, 3, 1]
    assert asked == ["abc", "d"]


def test_neither_many_texts_nor_long_ones_are_kept():
    memo = Memo(len)
    assert memo["x" * (LONGEST + 1)] == LONGEST + 1
    assert not memo
    for n in range(3 * MOST):
        assert memo[f"{n:05}"] == 5
        assert len(memo) <= MOST
