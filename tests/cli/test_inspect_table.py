"""What `inspect` says of a server, without starting one."""

import pytest

from mcp_junction.cli import inspect
from mcp_junction.config.load import without_file
from mcp_junction.testing.link import FakeUpstream

WORDS = "tools/list has more than 10000 items"


@pytest.mark.req("R-QUOTA")
async def test_a_server_that_was_not_read_whole_is_shown_with_the_reason(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    server = FakeUpstream("endless")
    server.condition.shortfall = WORDS
    server.apply_condition()
    row = inspect._describe_server(server, ["endless:echo"])
    assert (row["state"], row["diagnostic"]) == ("DEGRADED", WORDS)
    inspect._print_table(without_file({}, {}, {}), [row])
    assert WORDS in capsys.readouterr().out


async def test_nothing_that_a_server_says_steers_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    steering = "\x1b]0;owned\x07\x1b[2J"
    row = inspect._describe_server(FakeUpstream("loud"), [f"loud:{steering}"])
    row |= {"name": f"n{steering}", "version": steering, "instructions": f"Do. {steering}"}
    late = row | {"diagnostic": f"d{steering}", "stderr_tail": [f"e{steering}"]}
    inspect._print_table(without_file({}, {}, {}), [row, late])
    shown = capsys.readouterr().out
    assert "owned" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown
