"""Words: however a thing is written, it comes to the same terms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.search.words import all_terms, query_terms, stem, terms

ISSUE = ["creat", "issu"]


@pytest.mark.parametrize(
    "text", ["create_issue", "create-issue", "CREATE ISSUE", "creates issues", "creating an issue"]
)
def test_spellings_of_one_thing_come_to_the_same_terms(text):
    assert terms(text) == ISSUE


def test_a_name_in_camel_case_is_found_by_its_parts_and_as_a_whole():
    assert terms("createIssue") == [*ISSUE, stem("createissue")]
    assert terms("listHTTPServers") == ["list", "http", "server", stem("listhttpservers")]
    assert set(terms("github")) <= set(terms("GitHub"))
    assert terms("OAuth2Token")[-1] == "oauth2token"


@pytest.mark.parametrize(
    "words",
    [
        ["query", "queries"],
        ["convert", "converts", "converted", "converting"],
        ["generate", "generates", "generated", "generating", "generation"],
        ["stop", "stopped", "stopping"],
        ["class", "classes"],
        ["box", "boxes"],
        ["search", "searches", "searching"],
        ["file", "files"],
    ],
)
def test_endings_make_no_difference(words):
    assert len({stem(word) for word in words}) == 1


@pytest.mark.parametrize(("one", "other"), [("status", "state"), ("call", "cal"), ("sing", "s")])
def test_different_words_stay_different(one, other):
    assert stem(one) != stem(other)


def test_small_words_say_nothing():
    assert terms("to be or not to be, with the and of it") == []
    assert query_terms("the issue of it") == ["issu"]


def test_where_there_are_no_others_small_words_count():
    assert query_terms("about me") == ["about", "me"]
    assert all_terms("about_issues") == ["about", "issu"]


def test_scripts_without_spaces_are_cut_into_pairs():
    assert terms("搜索结果") == ["搜索", "索结", "结果"]
    assert terms("用API搜索") == ["用", "api", "搜索"]
    assert set(terms("搜索")) <= set(terms("使用必应搜索指定"))


@given(st.text(max_size=200))
def test_any_text_has_terms_and_they_are_lower_case_and_bounded(text):
    for term in terms(text):
        assert term
        assert len(term) <= 40
        assert term == term.lower() or not term.isascii()


@given(st.text(alphabet="abcdeinsgotXYZ_ -", max_size=80))
def test_case_alone_never_hides_a_word(text):
    assert set(terms(text.lower())) <= set(terms(text)) | set(terms(text.lower().replace("_", " ")))
