"""How calls that end without a result are answered: the status, the wait, the correlation id."""

import json

import pytest

from mcp_junction.listener.replies import CollectedReply, PipeReplies, Reply, finish, reply_to
from mcp_junction.protocol.versions import (
    CALL_TIMEOUT,
    CIRCUIT_OPEN,
    DENIED,
    IDEMPOTENCY_CONFLICT,
    INVALID_PARAMS,
    RATE_LIMITED,
    SERVER_UNAVAILABLE,
)
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery

NOT_SENT, UNKNOWN = Delivery.NOT_SENT, Delivery.UNKNOWN


@pytest.mark.parametrize(
    ("code", "status"),
    [(RATE_LIMITED, 429), (DENIED, 403), (CIRCUIT_OPEN, 503), (IDEMPOTENCY_CONFLICT, 409),
     (INVALID_PARAMS, 400), (SERVER_UNAVAILABLE, 200), (CALL_TIMEOUT, 200)],
)  # fmt: skip
def test_a_refused_call_has_the_status_of_its_code(code, status):
    assert reply_to(b"1", outcomes.failed(code, "no", NOT_SENT), "").status == status


@pytest.mark.parametrize("code", [RATE_LIMITED, DENIED, CIRCUIT_OPEN])
def test_no_status_says_that_nothing_ran_where_that_is_unknown(code):
    reply = reply_to(b"1", outcomes.failed(code, "no", UNKNOWN), "c")
    assert (reply.status, reply.retry_after) == (200, 0)


@pytest.mark.parametrize("code", [RATE_LIMITED, DENIED, CIRCUIT_OPEN])
def test_a_servers_own_error_is_passed_on_as_it_is(code):
    payload = b'{"code":%d,"message":"mine","data":[1.50]}' % code
    reply = reply_to(b"1", outcomes.refused(payload), "c")
    assert reply == Reply(b'{"jsonrpc":"2.0","id":1,"error":%b}\n' % payload)


@pytest.mark.parametrize(
    ("data", "seconds"),
    [({}, 1), ({"retry_after_ms": 1}, 1), ({"retry_after_ms": 2001}, 3),
     ({"retry_after_ms": 0}, 1), ({"retry_after_ms": 1e300}, 86_400)],
)  # fmt: skip
def test_a_wait_is_told_in_whole_seconds(data, seconds):
    for code in (RATE_LIMITED, CIRCUIT_OPEN):
        assert (
            reply_to(b"1", outcomes.failed(code, "later", NOT_SENT, **data), "").retry_after
            == seconds
        )
    assert reply_to(b"1", outcomes.failed(DENIED, "no", NOT_SENT, **data), "").retry_after == 0


def test_an_error_of_ours_is_given_the_correlation_id_beside_its_other_data():
    outcome = outcomes.failed(DENIED, "no", NOT_SENT, server="s")
    error = json.loads(reply_to(b"1", outcome, "c-1").frame)["error"]
    assert error["data"] == {"server": "s", "delivery": "not_sent", "correlation_id": "c-1"}
    assert "correlation_id" not in json.loads(reply_to(b"1", outcome, "").frame)["error"]["data"]


def test_nobody_waits_for_a_cancelled_call():
    assert reply_to(b"1", outcomes.cancelled("over", NOT_SENT), "c") is None


async def test_answers_that_come_later_end_like_those_at_once():
    async def later() -> Reply:
        return Reply(b"later")

    sent: list[bytes] = []

    class Wire:
        send = offer = sent.append

    for channel in (PipeReplies(Wire), collected := CollectedReply(Wire)):
        assert finish(channel, b"1", Reply(b"now")) is None
        rest = finish(channel, b"1", later())
        assert rest is not None
        await rest
        assert channel.end_with(b"1", None) is None
    assert sent == [b"now", b"later"]
    assert collected.answer is None, "the last one was cancelled"
