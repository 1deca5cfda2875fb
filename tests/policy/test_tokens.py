"""Tokens: what a high-risk call needs beside its grant, in each mode."""

import itertools

import pytest

from mcp_junction.policy.tokens import (
    DEFAULT_TTL,
    PresentedToken,
    Token,
    TokenMode,
    check_tokens,
    hash_secret,
    read_token,
    write_token,
)

NOW = 1_000.0


def token(token_id: str = "t1", secret: str = "secret", **more) -> Token:
    more.setdefault("expires_at", NOW + 60)
    return Token(token_id, "g1", hash_secret(secret), NOW - 10, **more)


def carry(token_id: str = "t1", secret: str = "secret") -> PresentedToken | None:
    return read_token(write_token(token_id, secret))


LIVE, EXPIRED = token(), token(expires_at=NOW)
REVOKED, USED = token(revoked_at=NOW - 1), token(used_at=NOW - 1)


def passes(mode, tokens, presented=None, **more) -> bool:
    check = check_tokens(TokenMode(mode), tokens, presented, NOW, **more)
    assert bool(check.missing) is not check.passes  # a refusal says what to do
    return check.passes


def test_a_token_is_good_for_a_quarter_of_an_hour():
    assert DEFAULT_TTL == 900.0


def test_without_a_mode_every_call_passes():
    assert passes("none", [])
    assert not check_tokens(TokenMode.NONE, [], None, NOW).spends


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [([], False), ([LIVE], True), ([EXPIRED], False), ([REVOKED], False), ([USED], True)],
)
def test_a_window_is_open_while_a_live_token_exists(tokens, expected):
    assert passes("window", tokens) is expected
    assert passes("window", [EXPIRED, REVOKED, *tokens]) is expected


def test_a_window_says_until_when_it_is_open():
    tokens = [LIVE, token("t2", expires_at=NOW + 500), token("t3", expires_at=NOW + 20)]
    check = check_tokens(TokenMode.WINDOW, tokens, None, NOW)
    assert (check.token, check.until, check.spends) == ("t2", NOW + 500, False)


@pytest.mark.parametrize("mode", ["present", "single_use"])
@pytest.mark.parametrize(
    ("tokens", "presented", "expected"),
    [
        ([LIVE], None, False),
        ([LIVE], carry(), True),
        ([LIVE], carry("t2"), False),
        ([LIVE], carry(secret="guess"), False),
        ([EXPIRED], carry(), False),
        ([REVOKED], carry(), False),
        ([], carry(), False),
    ],
)
def test_a_token_that_is_wanted_has_to_be_carried(mode, tokens, presented, expected):
    assert passes(mode, tokens, presented) is expected


def test_a_token_is_used_once_in_the_mode_for_that():
    assert passes("present", [USED], carry())
    assert not passes("single_use", [USED], carry())
    assert check_tokens(TokenMode.SINGLE_USE, [LIVE], carry(), NOW).spends
    assert not check_tokens(TokenMode.PRESENT, [LIVE], carry(), NOW).spends


def test_a_repeated_call_shows_the_token_that_its_first_try_used():
    for used in (USED, token(used_at=NOW - 1, expires_at=NOW)):
        check = check_tokens(TokenMode.SINGLE_USE, [used], carry(), NOW, has_idempotency_key=True)
        assert check.passes
        assert check.replay_only
        assert not check.spends
    fresh = check_tokens(TokenMode.SINGLE_USE, [LIVE], carry(), NOW, has_idempotency_key=True)
    assert not fresh.replay_only


def test_what_depends_on_the_token_carried_is_not_remembered():
    for mode, key in itertools.product(("present", "single_use"), (False, True)):
        check = check_tokens(TokenMode(mode), [LIVE], carry(), NOW, has_idempotency_key=key)
        assert check.until is None


def test_an_approval_is_asked_for_when_the_call_is_admitted_and_never_remembered():
    check = check_tokens(TokenMode.APPROVAL, [LIVE], carry(), NOW)
    assert (check.passes, check.spends, check.until) == (True, False, None)


@pytest.mark.parametrize(
    "text", ["", "jtk", "jtk_", "jtk__", "jtk_a_", "jtk__b", "jct_a_b", "a_b", "jtk-a-b", "ЁЖ_Ж_Ж"]
)
def test_what_is_not_a_token_is_none(text):
    assert read_token(text) is None


def test_a_secret_may_have_the_separator_in_it():
    assert carry("t1", "a_b_c") == PresentedToken("t1", hash_secret("a_b_c"))


def test_a_text_that_no_one_could_have_made_is_only_not_found():
    assert not passes("present", [LIVE], read_token("jtk_t1_\ud800"))
