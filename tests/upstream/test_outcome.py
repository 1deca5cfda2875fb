"""Outcomes: how an attempt ended, and what may be done next."""

import json

import pytest

from mcp_junction.protocol.versions import CALL_TIMEOUT, LINK_LOST, SERVER_UNAVAILABLE
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, OutcomeKind


@pytest.mark.req("R-ANSWER")
@pytest.mark.parametrize(
    ("outcome", "code", "delivery"),
    [
        (outcomes.unavailable("s", "it exited"), SERVER_UNAVAILABLE, "not_sent"),
        (outcomes.link_lost("s", Delivery.UNKNOWN, "cut"), LINK_LOST, "unknown"),
        (outcomes.link_lost("s", Delivery.NOT_SENT, "cut"), LINK_LOST, "not_sent"),
        (outcomes.timed_out("s", Delivery.UNKNOWN, 1.5), CALL_TIMEOUT, "unknown"),
        (outcomes.failed(-1, "x", Delivery.EXECUTED, server="s"), -1, "executed"),
    ],
)
def test_a_failure_of_ours_says_delivery_and_server(outcome, code, delivery):
    frame = json.loads(outcome.frame(b"7"))
    assert frame["id"] == 7
    assert frame["error"]["code"] == code
    assert frame["error"]["data"] == {"server": "s", "delivery": delivery}
    assert (outcome.kind, outcome.delivery) == (OutcomeKind.ERROR, delivery)


def test_a_time_is_told_in_seconds():
    assert "within 1.5 s" in outcomes.timed_out("s", Delivery.UNKNOWN, 1.5).message


@pytest.mark.req("US3-2", "FR-008")
def test_a_servers_own_answer_is_passed_on_as_it_is():
    assert outcomes.result(b'{"a" : 1.0}').frame(b'"x"') == (
        b'{"jsonrpc":"2.0","id":"x","result":{"a" : 1.0}}\n'
    )
    assert outcomes.refused(b'{"code": 5}').frame(b"1") == (
        b'{"jsonrpc":"2.0","id":1,"error":{"code": 5}}\n'
    )
    assert outcomes.refused(b"{}").delivery is None, "it has answered: nothing is in doubt"


def test_a_cancelled_call_keeps_its_reason_and_delivery():
    outcome = outcomes.cancelled("enough", Delivery.UNKNOWN)
    assert (outcome.kind, outcome.delivery) == (OutcomeKind.CANCELLED, Delivery.UNKNOWN)
    assert "enough" in outcome.message


def test_the_words_of_an_error_are_found_or_it_is_shown_whole():
    assert outcomes.refused(b'{"code":1,"message":"on fire"}').message == "on fire"
    assert outcomes.refused(b'{"code":1}').message == '{"code":1}'


def test_names_that_cannot_be_written_do_not_stop_an_answer():
    frame = json.loads(outcomes.unavailable("\ud800", "x").frame(b"1"))
    assert frame["error"]["code"] == SERVER_UNAVAILABLE
