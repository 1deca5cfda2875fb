"""`mcp-junction vault`: the key of a running service is shown and replaced."""

import json

import pytest
from tests.cli.serving import serve_demo

from mcp_junction.cli import keys, vault
from mcp_junction.cli.remote import SERVERS, ServiceClient
from mcp_junction.errors import UsageError
from mcp_junction.vault.key_file import VARIABLE


def test_a_key_is_replaced_while_a_service_runs(tmp_path, capsys):
    with serve_demo(tmp_path) as service:
        before = _status(tmp_path, capsys)
        (running,) = before["services"]
        assert running["keys"] == [before["current"]]
        assert vault.run(["rotate", "--json", "--data-dir", str(tmp_path)]) == 0
        done = json.loads(capsys.readouterr().out)
        after = _status(tmp_path, capsys)
        assert (done["from"], done["to"]) == (before["current"], after["current"])
        assert after["retired"] == [before["current"]]
        assert after["services"][0]["keys"] == [after["current"]]
        assert all(not one["older"] and not one["invalid"] for one in after["tables"])
        remote = ServiceClient(service.url, (tmp_path / "admin.key").read_text().strip())
        assert all(one["status"] == "CONNECTED" for one in remote.pages(SERVERS))
        assert vault.run(["status", "--data-dir", str(tmp_path)]) == 0
        assert f"seals with {after['current']}" in capsys.readouterr().out


def test_a_key_of_the_environment_is_replaced_by_hand(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(VARIABLE, "a1" * 32)
    data = ["--data-dir", str(tmp_path)]
    assert keys.run(["create", "--role", "viewer", *data]) == 0
    with pytest.raises(UsageError, match="only you can change"):
        vault.run(["rotate", *data])
    monkeypatch.setenv(VARIABLE, f"{'b2' * 32} {'a1' * 32}")
    capsys.readouterr()
    assert vault.run(["rotate", "--json", *data]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] > 0
    monkeypatch.setenv(VARIABLE, f"{'b2' * 32} retired:{'a1' * 32}")
    assert all(not one["invalid"] for one in _status(tmp_path, capsys)["tables"])
    assert not (tmp_path / "credential.key").exists()


def _status(folder, capsys) -> dict:
    assert vault.run(["status", "--json", "--data-dir", str(folder)]) == 0
    return json.loads(capsys.readouterr().out)
