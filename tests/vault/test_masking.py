"""Masking: no secret is shown, and what was shown can be sent back."""

import json

import pytest

from mcp_junction.errors import VaultError
from mcp_junction.vault.masking import MASK, masked, unmasked

CONFIG = {
    "command": "run",
    "args": ["--api-key=canary", "--verbose", "-x", "plain"],
    "env": {"HOME": "canary", "TOKEN": "canary"},
    "url": "https://me:canary@host.example/path?api_key=canary&page=2",
    "headers": {"Authorization": "Bearer canary", "X-Plain": "canary"},
    "auth": {"type": "oauth", "client_id": "us", "client_secret": "canary"},
    "timeout": 5,
}


def test_what_is_shown_holds_no_secret_but_tells_the_rest():
    shown = masked(CONFIG)
    assert "canary" not in json.dumps(shown)
    assert shown["command"] == "run"
    assert shown["args"] == [f"--api-key={MASK}", "--verbose", "-x", "plain"]
    assert shown["env"] == {"HOME": MASK, "TOKEN": MASK}
    assert shown["url"] == f"https://{MASK}@host.example/path?api_key={MASK}&page=2"
    assert shown["auth"] == {"type": "oauth", "client_id": "us", "client_secret": MASK}
    assert shown["timeout"] == 5


def test_what_was_shown_and_is_sent_back_is_what_was_kept():
    assert unmasked(masked(CONFIG), CONFIG) == CONFIG


def test_what_is_sent_anew_replaces_what_was_kept():
    sent = masked(CONFIG)
    sent["env"] = {"TOKEN": MASK, "HOME": "new"}
    sent["url"] = "https://other.example/"
    got = unmasked(sent, CONFIG)
    assert got["env"] == {"TOKEN": "canary", "HOME": "new"}
    assert got["url"] == "https://other.example/"
    assert got["headers"] == CONFIG["headers"]


def test_a_mask_for_nothing_is_refused():
    for sent in ({"env": {"NEW": MASK}}, {"auth": {"token": MASK}}, {"args": [MASK]}):
        with pytest.raises(VaultError, match="there is none"):
            unmasked(sent, {"env": {"TOKEN": "x"}})
