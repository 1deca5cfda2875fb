"""What the process knows to be a secret is in no text that passes here."""

import json
import logging
import re
import threading
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest

from mcp_junction.audit.chain import Chain
from mcp_junction.audit.entries import Entry
from mcp_junction.cli.stderr import RedactingFormatter
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.redaction import texts as module
from mcp_junction.redaction.payloads import LOOKED_AT, SUMMARY, summarize
from mcp_junction.redaction.texts import KNOWN, KnownSecrets

TOKEN = "sk-Ab1/cd+2\"ef='gh~99"
WORD = "swordfish"
BOUND = 10
SERVER = ServerDefinition(
    "s", "stdio", command="run", env={"API_KEY": TOKEN, "PASSWORD": WORD}, id="id-of-s"
)
SPELLINGS = [
    str, repr, json.dumps, lambda t: json.dumps(json.dumps(t)), lambda t: json.dumps({"a": t}),
    quote, lambda t: quote(t, ""), lambda t: t.encode().hex(),
    lambda t: re.sub("%..", lambda code: code[0].lower(), quote(t, "")),
    lambda t: t.encode().hex().upper(), lambda t: b64encode(t.encode()).decode(),
    lambda t: urlsafe_b64encode(t.encode()).decode(), lambda t: json.dumps(t).replace("/", "\\/"),
    *(lambda t, n=n: b64encode(b"user:"[:n] + t.encode() + b"!").decode() for n in range(1, 6)),
]  # fmt: skip


@pytest.fixture
def known():
    secrets = KnownSecrets()
    secrets.learn(SERVER)
    return secrets


@pytest.mark.req("S-14")
@pytest.mark.parametrize("spelled", SPELLINGS, ids=range(len(SPELLINGS)))
@pytest.mark.parametrize("server_id", [None, "id-of-s", "another"])
def test_a_strong_secret_is_hidden_in_every_text_however_it_is_spelled(known, spelled, server_id):
    text = f"it said {spelled(TOKEN)} to me"
    shown = known.redact(text, server_id)
    assert "***" in shown
    for part in ("Ab1", "gh~99", "41623", spelled(TOKEN)[5:15]):
        assert part not in shown
    assert shown.startswith("it said ")


def test_a_weak_secret_is_hidden_only_in_what_its_own_server_says(known):
    assert known.redact(f"a {WORD}!", "id-of-s") == "a ***!"
    assert known.redact(f"a {WORD}!") == known.redact(f"a {WORD}!", "another") == f"a {WORD}!"


def test_what_holds_no_secret_is_left_as_it_is(known):
    text = "the environment variable API_KEY is not set"
    assert known.redact(text, "id-of-s") is text
    assert KnownSecrets().redact(TOKEN) is TOKEN


def test_a_replaced_secret_is_still_known(known):
    known.learn(SERVER._replace(env={"API_KEY": "sk-another-0815"}))
    assert known.redact(f"{TOKEN} sk-another-0815") == "*** ***"


@pytest.mark.bulk
@pytest.mark.req("S-14")
@pytest.mark.parametrize("is_masked", [True, False])
def test_a_thousand_renewals_keep_the_last_values_known_and_no_more(known, is_masked):
    def value(number: int) -> str:
        return f"eyJhbGciOi.Token-{number:04}/x9"

    known.learn_value(value(1))  # it is also a secret of ours, and so stays one
    known.learn_renewed("box one", value(0))
    known.process_pending()
    few = known.size
    for number in range(1, 1001):
        known.learn_renewed("box one", value(number))
        if is_masked:
            former = max(number - 2, 0)
            text = " ".join(map(value, {number, number - 1, former}))
            assert set(known.redact(text).split()) == {"***"}
    assert known.redact(f"{value(1000)} {value(999)} {value(1)} {TOKEN}") == "*** *** *** ***"
    assert known.redact(value(500)) == value(500)
    assert known.size < 6 * few


@pytest.mark.req("S-14")
def test_a_renewal_forgets_no_value_of_another_credential_nor_one_that_is_read_again(known):
    known.learn_renewed("box one", "other-Value-0815")
    for number in range(50):
        known.learn_renewed("box two", f"eyJ0.Value-{number}/x9")
        known.learn_renewed("box one", "other-Value-0815")
        assert known.redact("other-Value-0815") == "***"
    assert known.redact("eyJ0.Value-49/x9 eyJ0.Value-48/x9") == "*** ***"


@pytest.mark.req("S-07")
@pytest.mark.parametrize("end", [None, -30])
def test_a_key_of_junctions_own_making_is_hidden_wherever_it_is_put(end):
    key = f"jct_0123456789ab_{'Zq8-_' * 8}zzz"[:end]
    shown = KnownSecrets().redact(f"no /api/v1/{key}/x, no {key}")
    assert shown == "no /api/v1/***/x, no ***"
    entry = Entry(kind="request", actor=key, action="GET", at=1.0, target=f"/mcp/{key}")
    assert key.encode() not in Chain(b"k" * 32, "w").extend([entry]).page.body
    assert KnownSecrets().redact("jct_0123456789ab") == "jct_0123456789ab", "its id is no secret"


def test_what_a_url_of_our_own_holds_is_hidden():
    secrets = KnownSecrets()
    secrets.learn_url("postgresql://junction:hunter2-hunter2@db.example/x")
    assert secrets.redact("no hunter2-hunter2 at db.example") == "no *** at db.example"
    secrets.learn_value("the-key-0815")
    assert secrets.redact_data({"a": ["the-key-0815", 1]}) == {"a": ["***", 1]}


@pytest.mark.req("S-14")
def test_a_secret_that_a_tool_repeats_is_not_in_the_audit():
    KNOWN.learn(SERVER)
    result = json.dumps({"content": [{"type": "text", "text": f"I have {TOKEN} and {WORD}"}]})
    for uri in (f"https://u:{TOKEN[3:6]}pw@h/x", f"x://{TOKEN}"):
        entry = Entry(
            kind="call", actor="a", action="tools/call", at=0.0, server_id="id-of-s", target=uri,
            result=result.encode(), detail={"why": [f"no {TOKEN}"]}, correlation_id=TOKEN,
        )  # fmt: skip
        row = Chain(bytes(32), "w").extend([entry]).page.lines[0]
        assert b"I have *** and ***" in row
        assert b"no ***" in row
        for part in (b"sk-Ab1", b"gh~99", WORD.encode(), b"Ab1pw"):
            assert part not in row


@pytest.mark.req("S-14")
@pytest.mark.parametrize("at", range(SUMMARY - 40, SUMMARY + 2, 3))
def test_a_summary_shows_no_part_of_a_secret_that_it_would_cut(at):
    secrets = KnownSecrets()
    token = "sk-" + "x1Y2" * 300
    secrets.learn(SERVER._replace(env={"API_KEY": token}))
    text = "." * at + token
    assert len(text) > LOOKED_AT
    assert "x1Y2" not in summarize(text.encode(), None, secrets)


@pytest.mark.req("S-14")
def test_a_secret_is_not_in_the_log_nor_in_a_traceback_there():
    KNOWN.learn(SERVER)
    try:
        raise ValueError(f"cannot use {TOKEN}")
    except ValueError as error:
        record = logging.makeLogRecord(
            {"msg": "no %s", "args": (TOKEN,), "exc_info": (type(error), error, None)}
        )
    said = RedactingFormatter("%(message)s").format(record)
    assert said.startswith("no ***")
    assert "cannot use ***" in said
    assert "Ab1" not in said


def test_what_was_learned_can_be_looked_at_ahead(known):
    assert known.is_pending
    known.process_pending()
    assert not known.is_pending
    assert known.redact(TOKEN) == "***"


async def test_nothing_is_left_to_look_at_when_the_service_has_started(single, toolbox):
    server = await toolbox()
    await single({"box": {"url": server.url, "headers": {"X-Api-Key": TOKEN}}})
    assert not KNOWN.is_pending
    assert KNOWN.redact(f"no {TOKEN}") == "no ***"


def test_a_text_is_masked_also_while_another_thread_learns(monkeypatch):
    secrets, began, may_go_on = KnownSecrets(), threading.Event(), threading.Event()
    find, texts = module._secrets_in, []

    def find_slowly(source):
        began.set()
        may_go_on.wait(BOUND)
        return find(source)

    monkeypatch.setattr(module, "_secrets_in", find_slowly)
    secrets.learn_value("hunter2-hunter2-81")
    learning = threading.Thread(target=secrets.process_pending)
    learning.start()
    assert began.wait(BOUND)
    mask = threading.Thread(target=lambda: texts.append(secrets.redact("it is hunter2-hunter2-81")))
    mask.start()
    mask.join(0.2)  # it has to wait for the other; it would be over by now if it did not
    may_go_on.set()
    for thread in (learning, mask):
        thread.join(BOUND)
    assert texts == ["it is ***"]


def test_what_is_logged_by_what_learns_waits_for_nothing(monkeypatch):
    secrets, find, texts = KnownSecrets(), module._secrets_in, []

    def find_and_log(source):
        texts.append(secrets.redact("a text without any"))
        return find(source)

    monkeypatch.setattr(module, "_secrets_in", find_and_log)
    secrets.learn_value("hunter2-hunter2-81")
    mask = threading.Thread(
        target=lambda: texts.append(secrets.redact("it is hunter2-hunter2-81")), daemon=True
    )
    mask.start()
    mask.join(BOUND)
    assert texts == ["a text without any", "it is ***"]
