"""`mcp-junction keys create` at a terminal: it asks for what it was not told."""

import io

import pytest

from mcp_junction.cli import keys
from mcp_junction.errors import UsageError


class Terminal(io.StringIO):
    """A terminal at which somebody has typed."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(monkeypatch):
    """Let somebody type these lines; what they were shown."""

    def at(lines: str) -> io.StringIO:
        shown = Terminal()
        monkeypatch.setattr("sys.stdin", Terminal(lines))
        monkeypatch.setattr("sys.stderr", shown)
        return shown

    return at


def test_a_role_is_asked_for_until_it_is_one(typed, tmp_path, capsys):
    shown = typed("king\n\n viewer \n")
    assert keys.run(["create", "--data-dir", str(tmp_path / "data")]) == 0
    assert capsys.readouterr().out.startswith("jct_")
    assert shown.getvalue().count("Which role?") == 3
    assert "calls nothing" in shown.getvalue()
    assert "(viewer)" in shown.getvalue()


def test_who_chooses_none_gets_no_key(typed, tmp_path):
    typed("king\n")
    with pytest.raises(UsageError, match="no role was chosen"):
        keys.run(["create", "--data-dir", str(tmp_path / "data")])
    assert not (tmp_path / "data").exists()
