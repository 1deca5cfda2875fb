"""Masking: no secret is shown, and what was shown can be sent back."""

import json

import pytest

from mcp_junction.errors import MaskError
from mcp_junction.redaction.connections import (
    mask_connection,
    mask_url,
    restore_masked,
    restore_url,
)
from mcp_junction.redaction.texts import MASK

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
    shown = mask_connection(CONFIG)
    assert "canary" not in json.dumps(shown)
    assert shown["command"] == "run"
    assert shown["args"] == [f"--api-key={MASK}", "--verbose", "-x", "plain"]
    assert shown["env"] == {"HOME": MASK, "TOKEN": MASK}
    assert shown["url"] == f"https://{MASK}@host.example/path?api_key={MASK}&page=2"
    assert shown["auth"] == {"type": "oauth", "client_id": "us", "client_secret": MASK}
    assert shown["timeout"] == 5


def test_what_was_shown_and_is_sent_back_is_what_was_kept():
    assert restore_masked(mask_connection(CONFIG), CONFIG) == CONFIG


def test_what_is_sent_anew_replaces_what_was_kept():
    sent = mask_connection(CONFIG)
    sent["env"] = {"TOKEN": MASK, "HOME": "new"}
    sent["url"] = "https://host.example:443/other"
    got = restore_masked(sent, CONFIG)
    assert got["env"] == {"TOKEN": "canary", "HOME": "new"}
    assert got["url"] == "https://host.example:443/other"
    assert got["headers"] == CONFIG["headers"]


def test_a_mask_for_nothing_is_refused():
    for sent in ({"env": {"NEW": MASK}}, {"auth": {"token": MASK}}, {"args": [MASK]}):
        with pytest.raises(MaskError, match="there is none"):
            restore_masked(sent, {"env": {"TOKEN": "x"}})


SECRET = "Zq8-canary-77"
ARGS = [
    ["--token", SECRET], ["--token", "pw1"], ["-k", SECRET], ["--api-key=" + SECRET],
    ["API_KEY=" + SECRET], ["-e", "API_KEY=" + SECRET], ["--env=API_KEY=" + SECRET],
    ["--header", f"Authorization: Bearer {SECRET}"], ["--header", f"Authorization:{SECRET}"],
    [f"--header=Authorization: Bearer {SECRET}"], ["-H", f"X-Api-Key: {SECRET}"],
    [f"Authorization: Bearer {SECRET}"], [f"postgres://u:{SECRET}@h/db"], [f"https://{SECRET}@h/x"],
    [f"https://h/x?page=2&access_token={SECRET}"], ["--config", json.dumps({"apiKey": SECRET})],
    ["--db-pass", SECRET], ["--auth", f"Bearer {SECRET}"], ["-c", f"srv --api-key {SECRET} -v"],
    [f"Server=h;Password={SECRET};Timeout=5"], ["-k", "sk-live0123456789abcdef"],
    ["ghp_0123456789abcdefABCDEF0123456789abcd"], ["AKIAIOSFODNN7EXAMPLE"],
    ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"], ["sk-proj-abcdef123456"],
    ["-u", f"me:{SECRET}"], ["--user", f"me:{SECRET}"], [f"me:{SECRET}@tcp(host:3306)/db"],
    ["--jwt", SECRET], ["--psk", SECRET], ["--creds", SECRET], [f"Server=h;Uid=me;Pwd={SECRET};"],
    [f"https://h/x?sv=1&sig={SECRET}"], ["https://h/mcp/sk-ak-0123456789abcdef/sse"],
    ["https://h/x?code=aB0123456789abcdefK2=="], ["https://h/s/aB0123456789abcdefK2/mcp#top"],
]  # fmt: skip


@pytest.mark.req("S-14")
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("args", ARGS, ids=str)
def test_no_spelling_of_a_secret_among_the_arguments_is_shown_or_lost(args, kind):
    config = {"command": "run", "args": kind(["serve", *args, "--verbose"])}
    shown = mask_connection(config)
    said = json.dumps(shown)
    for secret in (SECRET, "pw1", "0123456789abcdef", "IOSFODNN7", "eyJhbG", "abcdef123456"):
        assert secret not in said
    assert shown["args"][0] == "serve"
    assert shown["args"][-1] == "--verbose"
    assert list(restore_masked(shown, config)["args"]) == list(config["args"])


@pytest.mark.parametrize(
    "word",
    ["-y", "@scope/server@1.2.3", "mcp-server-git==2025.1.14", "--port", "8080", "/srv/data",
     "git+https://github.com/a/b@0123456789abcdef0123456789abcdef01234567", "--log-level=debug",
     "3f2504e0-4f89-11d3-9a0c-0305e82c3301", "https://api.example.com/v1?page=2", "${HOME}/x",
     "https://github.com/a/b/commit/0123456789abcdef0123456789abcdef01234567", "PWD=/srv/data",
     "https://h.example/Projects/My-Notes/2024-11-17?view=Table", "git@github.com:a/b", "1000:1000",
     "npm:left-pad@1.3.0", "https://h.example/3f2504e0-4f89-11d3-9a0c-0305e82c3301/mcp"],
)  # fmt: skip
def test_an_argument_that_is_no_secret_is_shown(word):
    assert mask_connection({"args": [word]})["args"] == [word]


def test_a_value_that_is_masked_in_one_place_is_masked_in_all():
    config = {"command": "run", "args": ["--to", f"x{SECRET}y"], "env": {"API_KEY": SECRET}}
    assert mask_connection(config)["args"] == ["--to", "x***y"]


def test_a_reference_to_a_variable_is_shown_and_its_default_is_not():
    config = {
        "args": ["--token", "${TOKEN}", "--key=${KEY}", "--token", "${T:-canary}"],
        "env": {"A": "${B}", "C": "x${B}", "D": "${E:-canary}", "F": "$lower"},
        "headers": {"Authorization": "Bearer ${TOKEN}"},
    }
    assert mask_connection(config) == {
        "args": ["--token", "${TOKEN}", "--key=${KEY}", "--token", MASK],
        "env": {"A": "${B}", "C": MASK, "D": MASK, "F": MASK},
        "headers": {"Authorization": "Bearer ${TOKEN}"},
    }


@pytest.mark.req("S-14")
@pytest.mark.parametrize(
    "url",
    ["https://evil.example/path", "http://host.example/path", "https://host.example:8443/path",
     "https://me@evil.example/path", "https://host.example.evil.example/", "https://${HOST}/path",
     "https://***@evil.example/path?api_key=***&page=2", "https://evil.example\\@host.example/"],
)  # fmt: skip
def test_a_kept_secret_is_not_sent_to_another_origin(url):
    kept = {"url": CONFIG["url"], "headers": CONFIG["headers"]}
    sent = {**mask_connection(kept), "url": url}
    with pytest.raises(MaskError, match="the origin of its url has changed; send the value"):
        restore_masked(sent, kept)
    anew = {"url": "https://evil.example/", "headers": {"Authorization": "Bearer new"}}
    assert restore_masked(anew, kept) == anew


@pytest.mark.req("S-14")
def test_a_kept_secret_is_not_given_to_another_program():
    kept = {"command": "npx", "args": ["x"], "env": {"TOKEN": "canary"}}
    with pytest.raises(MaskError, match="its command has changed"):
        restore_masked({**mask_connection(kept), "command": "/tmp/evil"}, kept)
    sent = {**mask_connection(kept), "args": ["x", "--verbose"]}
    assert restore_masked(sent, kept) == {**kept, "args": ["x", "--verbose"]}


@pytest.mark.req("S-14")
@pytest.mark.parametrize(
    "args",
    [["-y", "evil", "--host", "h"], ["-y", "evil-key", "--host", "h"],
     ["-y", "good", "--host", "evil"], ["-y", "good"],
     ["-y", "good", "--host", "h", "--call=evil"], ["-y", "good", "--host", "h", "evil"]],
)  # fmt: skip
def test_a_kept_secret_is_not_given_to_what_other_arguments_name(args):
    kept = {"command": "npx", "args": ["-y", "good", "--host", "h"], "env": {"TOKEN": "canary"}}
    assert restore_masked({**mask_connection(kept), "args": kept["args"]}, kept) == kept
    with pytest.raises(MaskError, match="what its arguments name has changed; send the value"):
        restore_masked({**mask_connection(kept), "args": args}, kept)
    anew = {**kept, "args": args, "env": {"TOKEN": "another"}}
    assert restore_masked(anew, kept) == anew


@pytest.mark.req("S-14")
@pytest.mark.parametrize(
    ("sent", "restored"),
    [
        (["-v", "--token", MASK, "--secret", MASK], ["-v", "--token", "one1", "--secret", "two2"]),
        (["--secret", MASK], ["--secret", "two2"]),
        (["--secret", MASK, "--token", MASK], ["--secret", "two2", "--token", "one1"]),
        (["--token", "new", "--secret", MASK], ["--token", "new", "--secret", "two2"]),
    ],
)
def test_a_masked_argument_is_known_by_the_word_before_it(sent, restored):
    kept = {"command": "x", "args": ["--token", "one1", "--secret", "two2"]}
    assert restore_masked({"command": "x", "args": sent}, kept)["args"] == restored


@pytest.mark.req("S-14")
@pytest.mark.parametrize("args", [[MASK], ["--other", MASK], ["--api-key=***"], ["x***"]])
def test_a_masked_argument_that_was_not_shown_so_is_refused(args):
    kept = {"command": "x", "args": ["--token", "one1", "--secret", "two2"]}
    with pytest.raises(MaskError, match="there is none; send the value itself"):
        restore_masked({"command": "x", "args": args}, kept)


@pytest.mark.req("S-14")
def test_a_masked_url_is_the_kept_one_and_another_with_a_mask_is_refused():
    kept = "https://me:canary@host.example/health?token=canary"
    shown = mask_url(kept)
    assert "canary" not in shown
    assert restore_url(shown, kept) == kept
    assert restore_url("https://new.example/", kept) == "https://new.example/"
    for sent, before in ((shown.replace("host", "evil"), kept), (shown, None), ("***", kept)):
        with pytest.raises(MaskError, match="send the value itself"):
            restore_url(sent, before)
