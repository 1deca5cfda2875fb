"""Redaction: the audit keeps nothing that stands under a secret's name."""

import json
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.redaction.payloads import (
    LOOKED_AT,
    SUMMARY,
    digest_params,
    redact_named_values,
    redact_value,
    summarize,
)

NAMES = ["password", "api_key", "accessToken", "CLIENT_SECRET", "Set-Cookie", "credentials"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "text",
    [
        '{"NAME":"canary"}',
        '{"NAME" : "can\\"ary canary", "b":1}',
        '{"NAME":["canary",{"a":"canary"}]}',
        '{"NAME":{"a":"canary"}}',
        '{"text":"{\\"NAME\\":\\"canary\\"}"}',
        '{"text":"{\\\\\\"NAME\\\\\\":\\\\\\"canary\\\\\\"}"}',
        "NAME=canary&x=1",
        "NAME: Bearer canary",
        "NAME = 'canary canary'",
        "x NAME: a=canary; b=canary",
        '{"NAME":"canary',
    ],
)
def test_a_named_secret_is_not_in_a_summary(name, text):
    shown = summarize(text.replace("NAME", name).encode())
    assert "canary" not in shown
    assert "[REDACTED]" in shown


@given(
    st.recursive(
        st.none() | st.integers() | st.text("abc{}[]\"'\\:=, ", max_size=10),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["a", "user_token", "Key"]), inner, max_size=3)
        ),
        max_leaves=10,
    ),
    st.sampled_from(NAMES),
)
def test_whatever_stands_around_it_a_secret_goes(value, name):
    whole = redact_value({"a": [value, {name: "canary"}], name: {"deep": ["canary", value]}})
    assert "canary" not in json.dumps(whole)


def test_what_is_no_secret_stays():
    assert redact_value({"path": "/x", "n": [1, None]}) == {"path": "/x", "n": [1, None]}
    assert redact_named_values("the token is in the key store") == "the token is in the key store"
    assert summarize(None) is None


def test_a_summary_is_cut_and_made_from_the_beginning_alone():
    assert len(summarize(b"x" * 10_000_000)) == SUMMARY
    assert summarize(b"\xff" * 10) == "\ufffd" * 10


@given(
    st.lists(st.sampled_from([*NAMES, "=", ":", " ", '"', "x" * 97, "é", "{", "}"]), max_size=40)
)
def test_a_summary_is_the_beginning_of_the_whole_redacted(parts):
    text = "".join(parts).encode()[:LOOKED_AT].decode("utf-8", "replace")
    assert summarize(text.encode()) == redact_named_values(text)[:SUMMARY]


def test_a_summary_holds_no_nul():
    assert summarize(b"a\0b") == "a\ufffdb"


def test_a_digest_is_of_what_is_said_without_its_secrets():
    one = digest_params(b'{"b": 1, "a": {"token":"x"}}')
    assert one == digest_params(b'{"a":{"token":"y"},"b":1}') != digest_params(b'{"b":2}')
    assert digest_params(None) is None
    assert digest_params(b"not json") == sha256(b"not json").hexdigest()
    assert digest_params(b' {"b":[1],"a":"x"}') == sha256(b'{"a":"x","b":[1]}').hexdigest()
    assert digest_params(b'[[{"key":1}]]') == sha256(b'[[{"key":"[REDACTED]"}]]').hexdigest()
