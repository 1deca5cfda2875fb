"""KeywordIndex: what is found, in which order, and that it is the same however it came about."""

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.search.tools import tool

from mcp_junction.protocol.names import Pair
from mcp_junction.search import index as indexes
from mcp_junction.search.index import STEPS, Hit, KeywordIndex, tool_fields, weights
from mcp_junction.search.words import query_terms

WORDS = ["alpha", "beta", "gamma", "delta", "issue", "create"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
PAIRS = st.builds(Pair, st.sampled_from(["one", "two"]), st.sampled_from(WORDS))


def everything(pair: Pair) -> bool:
    return True


def index_of(**servers: list) -> KeywordIndex:
    index = KeywordIndex()
    for server, tools in servers.items():
        for each in tools:
            index.put(Pair(server, each.name), tool_fields(server, each))
    return index


def names(hits: list[Hit]) -> list[str]:
    return [".".join(hit.pair) for hit in hits]


def test_a_word_in_the_name_tells_more_than_one_in_the_description_and_that_more_than_a_parameter():
    index = index_of(
        s=[
            tool("other", "does something with a thing and more"),
            tool("first", "has no such word", "invoice"),
            tool("second", "sends an invoice to somebody"),
            tool("invoice_send", "sends it to somebody"),
        ]
    )
    assert names(index.search("invoice", 10, everything)) == [
        "s.invoice_send",
        "s.second",
        "s.first",
    ]


def test_the_name_of_the_server_is_searched_too():
    index = index_of(github=[tool("create_issue")], jira=[tool("create_issue")])
    assert names(index.search("create a github issue", 2, everything))[0] == "github.create_issue"
    assert names(index.search("create a Jira issue", 2, everything))[0] == "jira.create_issue"


def test_a_rare_word_tells_more_than_a_common_one():
    common = [tool(f"get_{n}", "get") for n in range(20)]
    index = index_of(s=[*common, tool("weather", "tells it")])
    assert names(index.search("get weather", 1, everything)) == ["s.weather"]


def test_the_score_says_how_much_of_the_query_is_met():
    index = index_of(s=[tool("create_issue", "create an issue"), tool("list_files", "list files")])
    (whole,) = index.search("create issue", 1, everything)
    (half,) = index.search("create penguin", 1, everything)
    assert 0 < half.score < whole.score < 1


@pytest.mark.parametrize("query", ["", "  ", "penguin", "\x00", "💥"])
def test_a_query_that_fits_nothing_finds_nothing(query):
    assert index_of(s=[tool("create_issue")]).search(query, 10, everything) == []


def test_an_empty_index_finds_nothing():
    assert KeywordIndex().search("anything", 10, everything) == []


def test_only_what_is_admitted_is_found_and_the_limit_counts_that():
    index = index_of(one=[tool("echo"), tool("echo_all")], two=[tool("echo")])
    found = index.search("echo", 1, lambda pair: pair.server == "two")
    assert names(found) == ["two.echo"]


def test_a_tool_that_is_put_again_is_found_by_its_new_words_only():
    index = index_of(s=[tool("a", "penguin")])
    index.put(Pair("s", "a"), tool_fields("s", tool("a", "walrus")))
    assert len(index) == 1
    assert index.search("penguin", 1, everything) == []
    assert names(index.search("walrus", 1, everything)) == ["s.a"]
    index.remove(Pair("s", "a"))
    index.remove(Pair("s", "never"))
    assert (len(index), index.search("walrus", 1, everything)) == (0, [])


def test_where_too_much_would_have_to_be_looked_at_the_rarest_words_count(monkeypatch):
    index = index_of(
        s=[*(tool(f"t{n}", "common words") for n in range(50)), tool("needle", "penguin")]
    )
    monkeypatch.setattr(indexes, "MOST_LOOKED_AT", 10)
    assert names(index.search("common words penguin", 100, everything)) == ["s.needle"]
    assert len(index.search("common", 100, everything)) == 50, "one word is always looked at"


def test_hidden_tools_are_neither_looked_at_nor_counted(monkeypatch):
    shown = [tool("a", "common penguin"), tool("b", "common")]
    hidden = [tool(f"t{n}", "penguin walrus") for n in range(50)]
    whole, alone = index_of(s=[*shown, *hidden]), index_of(s=shown)
    visible = [Pair("s", "a"), Pair("s", "b"), Pair("s", "not indexed yet")]
    asked: list[Pair] = []

    def admits(pair: Pair) -> bool:
        asked.append(pair)
        return True

    monkeypatch.setattr(indexes, "MOST_LOOKED_AT", 10)
    query = "common penguin walrus"
    mask = whole.mask_of(visible)
    assert whole.search(query, 10, admits, mask) == alone.search(query, 10, everything)
    assert set(asked) == set(visible[:2])


def test_of_a_long_query_the_first_words_count(monkeypatch):
    index = index_of(s=[tool("a", "alpha beta gamma")])
    monkeypatch.setattr(indexes, "MOST_TERMS", 2)
    assert index.search("walrus walrus gamma alpha", 30, everything) != []
    assert index.search("walrus penguin gamma", 30, everything) == []


def test_numbers_of_tools_that_left_are_given_again_when_their_entries_are_gone(monkeypatch):
    monkeypatch.setattr(indexes, "_LEAST_GONE", 3)
    index = index_of(s=[tool(f"t{n}", "penguin") for n in range(4)])
    index.remove(Pair("s", "t0"))
    index.remove(Pair("s", "t1"))
    assert list(index.purge()) == []
    assert index.put(Pair("s", "new"), tool_fields("s", tool("new", "walrus"))) == 4
    index.remove(Pair("s", "t2"))
    epoch = index.epoch
    steps = index.purge()
    next(steps)
    index.remove(Pair("s", "t3"))  # while it goes on
    assert names(index.search("penguin walrus", 9, everything)) == ["s.new"]
    assert len(list(steps)) > 0
    assert index.epoch > epoch
    given = {index.put(Pair("s", f"n{n}"), tool_fields("s", tool(f"n{n}"))) for n in range(4)}
    assert given == {0, 1, 2, 5}
    assert names(index.search("penguin walrus", 9, everything)) == ["s.new"]


def test_a_name_of_small_words_is_found_by_them():
    index = index_of(s=[tool("about", "says something of all this"), tool("all_of_it", "more")])
    assert names(index.search("about", 10, everything)) == ["s.about"]
    assert names(index.search("all", 10, everything)) == ["s.all_of_it"]


def test_what_makes_no_sense_in_a_definition_has_no_words():
    odd = tool("odd", 7, title=["x"], inputSchema="no schema")
    assert names(index_of(s=[odd]).search("odd", 1, everything)) == ["s.odd"]


def plain(documents: dict[Pair, dict], query: str) -> list[Hit]:
    """The same by going through every document."""
    every = {pair: weights(found) for pair, found in documents.items()}
    rarity = {}
    for term in dict.fromkeys(query_terms(query)):
        having = sum(term in found for found in every.values())
        rarity[term] = log(1 + (len(every) - having + 0.5) / (having + 0.5))
    rarity = dict(sorted(rarity.items(), key=lambda item: item[1], reverse=True))
    hits = []
    for pair, found in every.items():
        score = 0.0
        for term, rare in rarity.items():
            score += rare * found.get(term, 0) / STEPS
        if score:
            hits.append(Hit(pair, score / sum(rarity.values())))
    return sorted(hits, key=lambda hit: (-hit.score, hit.pair))


CHANGES = st.lists(st.tuples(PAIRS, st.none() | TEXTS), max_size=25)


@given(CHANGES, TEXTS, st.sets(st.sampled_from(["one", "two"])), st.booleans())
def test_whatever_came_and_went_it_finds_what_going_through_all_would_find(
    changes, query, servers, is_purged
):
    index = KeywordIndex()
    documents: dict[Pair, dict] = {}
    for pair, text in changes:
        if text is None:
            index.remove(pair)
            documents.pop(pair, None)
        else:
            documents[pair] = tool_fields(pair.server, tool(pair.name, text))
            index.put(pair, documents[pair])
    if is_purged:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(indexes, "_LEAST_GONE", 1)
            list(index.purge())
    expected = [hit for hit in plain(documents, query) if hit.pair.server in servers]
    for limit in (1, 3, 100):
        found = index.search(query, limit, lambda pair: pair.server in servers)
        assert [hit.pair for hit in found] == [hit.pair for hit in expected][:limit]
        for hit, other in zip(found, expected, strict=False):
            assert hit.score == pytest.approx(other.score)
    assert len(index) == len(documents)
