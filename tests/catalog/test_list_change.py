"""ListChange: who can see a change, and how little the policy is asked about it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.catalog.items import TOOLS, ListItem
from mcp_junction.catalog.live_catalog import ListChange
from mcp_junction.catalog.scope import Scope
from mcp_junction.policy.principal import admit_all

LISTS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from("12")), unique_by=lambda item: item[0]
)


class Only:
    """Grants of these names, and which it was asked about."""

    def __init__(self, names) -> None:
        self.names = names
        self.asked: list[str] = []

    def of(self, _: str, server: str):
        return None if server == "hidden" else self.admits

    def admits(self, name: str) -> bool:
        self.asked.append(name)
        return name in self.names


def items(listed) -> tuple[ListItem, ...]:
    return tuple(ListItem(name, {"title": Raw(b"%d" % int(text))}) for name, text in listed)


@given(LISTS, LISTS, st.sets(st.sampled_from("abcdef")))
def test_a_change_is_visible_where_the_admitted_items_are_others_or_in_another_order(
    before, after, names
):
    change = ListChange(TOOLS, "s", items(before), items(after))
    old, new = ([item for item in listed if item[0] in names] for listed in (before, after))
    assert change.is_visible(Scope(EVERYTHING, Only(names))) is (old != new)


class Whole(Only):
    """Grants of all that a server has."""

    def of(self, _: str, server: str):
        return admit_all


def test_an_announcement_without_a_difference_is_told_to_who_sees_the_whole_server_alone():
    """It may be about something that is hidden, and changed where nobody sees it."""
    same = items([("a", "1")])
    change = ListChange(TOOLS, "s", same, same)
    assert change.is_visible(Scope(EVERYTHING, Whole({"a"})))
    assert not change.is_visible(Scope(EVERYTHING, Only({"a"})))


@pytest.mark.parametrize("names", [{"t1"}, {"t1", "t999"}, {"new"}])
def test_the_policy_is_asked_only_about_the_names_that_differ(names):
    before = items((f"t{n}", "1") for n in range(1000))
    change = ListChange(TOOLS, "s", before, (*before[:999], *items([("new", "1")])))
    grants = Only(names)
    assert change.is_visible(Scope(EVERYTHING, grants)) is (names != {"t1"})
    assert set(grants.asked) <= {"t999", "new"}


def test_no_change_of_a_server_that_is_hidden_is_visible():
    change = ListChange(TOOLS, "hidden", (), items([("a", "1")]))
    assert not change.is_visible(Scope(EVERYTHING, Only({"a"})))
