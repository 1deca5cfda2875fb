"""ToolSelection: which tools are shown, and under which names."""

import pytest

from mcp_junction.config.client_dialects import ToolSelection
from mcp_junction.errors import ProblemCode


@pytest.mark.parametrize(
    ("selection", "shown"),
    [
        (ToolSelection(), ["read", "read_all", "write"]),
        (ToolSelection(allow=("read*",)), ["read", "read_all"]),
        (ToolSelection(allow=("read",)), ["read"]),
        (ToolSelection(allow=()), []),
        (ToolSelection(deny=("read*",)), ["write"]),
        (ToolSelection(allow=("read*",), deny=("*_all",)), ["read"]),
        (ToolSelection(allow=("write",), deny=("write",)), []),
        (ToolSelection(rename={"read": "look"}), ["look", "read_all", "write"]),
        (ToolSelection(deny=("read",), rename={"read": "look"}), ["read_all", "write"]),
        (ToolSelection(deny=("look",), rename={"read": "look"}), ["look", "read_all", "write"]),
    ],
)
def test_what_is_shown_and_how_it_is_called(selection, shown):
    names = map(selection.name_for, ["read", "read_all", "write"])
    assert [name for name in names if name is not None] == shown


def test_a_name_with_the_signs_of_a_pattern_can_be_meant_as_it_is():
    assert ToolSelection(allow=("a[b]",)).name_for("a[b]") == "a[b]"


def test_a_selection_is_read_from_the_file(folder):
    tools = {"allow": ["read*"], "deny": ["read_all"], "rename": {"read": "look"}}
    config = folder.load(
        {"mcpServers": {"s": {"command": "x"}}, "junction": {"servers": {"s": {"tools": tools}}}}
    )
    selection = config.servers[0].tools
    assert selection == ToolSelection(("read*",), ("read_all",), {"read": "look"})
    assert folder.load({"mcpServers": {"s": {"command": "x"}}}).servers[0].tools is None


@pytest.mark.parametrize("tools", [5, [], "x", {"allow": "x"}, {"deny": [1]}, {"rename": ["a"]}])
def test_a_selection_of_another_shape_is_a_problem(folder, tools):
    (problem,) = folder.problems(
        {"mcpServers": {"s": {"command": "x"}}, "junction": {"servers": {"s": {"tools": tools}}}}
    )
    assert problem.code is ProblemCode.INVALID_SCHEMA
    assert problem.path == "$.junction.servers.s.tools"
