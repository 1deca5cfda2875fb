"""`mcp-junction keys create` at a terminal: it asks for what it was not told."""

import asyncio
import io

import pytest

from mcp_junction.cli import keys
from mcp_junction.errors import UsageError
from mcp_junction.store.store import default_url, open_store
from mcp_junction.vault.vault import Vault


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


def test_the_token_of_a_grant_lives_as_long_as_the_setting_says(tmp_path, monkeypatch, capsys):
    data = tmp_path / "data"
    monkeypatch.setenv("MCP_TOKEN_TTL_MINUTES", "1")
    words = ["create", "--role", "agent", "--agent", "bot", "--data-dir", str(data)]
    assert keys.run([*words, "--grant", "*"]) == 0
    assert "mcp-junction grants" not in capsys.readouterr().err

    async def read():
        vault = Vault.from_environment({}, data)
        async with await open_store(default_url(data), vault) as store:
            return await store.policy.grants.all()

    (grant,) = asyncio.run(read())
    assert grant.token_ttl == 60
    assert keys.run(words) == 0
    assert "mcp-junction grants" in capsys.readouterr().err


def test_tokens_of_a_subject_are_revoked_from_before_now(tmp_path, capsys):
    data, issuer = tmp_path / "data", "https://id.example.com"
    words = ["revoke-tokens", "alice", "--issuer", issuer, "--json", "--data-dir", str(data)]
    assert keys.run(words) == 0
    assert '"subject": "alice"' in capsys.readouterr().out

    async def read():
        vault = Vault.from_environment({}, data)
        async with await open_store(default_url(data), vault) as store:
            return await store.revoked_subjects.of_issuer(issuer)

    assert asyncio.run(read()).keys() == {"alice"}
