"""Ways to probe a server, and what the answers say."""

import pytest
from tests.http.origin import Origin, Visit

from mcp_junction.health.probes import (
    classify_call,
    classify_status,
    make_ping_probe,
    make_url_probe,
)
from mcp_junction.health.verdict import CallKind, ProbeKind
from mcp_junction.protocol.versions import METHOD_NOT_FOUND
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.http.dialer import Dialer
from mcp_junction.upstream.outcome import Delivery


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, ProbeKind.GOOD),
        (204, ProbeKind.GOOD),
        (302, ProbeKind.CLIENT_ERROR),
        (401, ProbeKind.UNAUTHENTICATED),
        (403, ProbeKind.UNAUTHENTICATED),
        (404, ProbeKind.CLIENT_ERROR),
        (429, ProbeKind.CLIENT_ERROR),
        (500, ProbeKind.SERVER_ERROR),
        (503, ProbeKind.SERVER_ERROR),
    ],
)
async def test_a_health_url_is_judged_by_its_status(status, kind):
    async def answer(visit: Visit) -> None:
        visit.answer(status, b"", location="http://169.254.169.254/")

    async with Origin(answer) as origin:
        found = await make_url_probe(f"{origin.url}/health", Dialer())()
    assert found.kind is kind
    assert found == classify_status(status)
    assert [visit.method for visit in origin.visits] == ["GET"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1/", "onnect"),
        ("https://10.0.0.1/", "may not be connected to"),
        ("http://a b/", "health_check_url: the url holds white space"),
    ],
)
async def test_a_health_url_that_cannot_be_asked_is_no_answer(url, words):
    found = await make_url_probe(url, Dialer())()
    assert found.kind is ProbeKind.UNREACHABLE
    assert words in found.detail


async def pinged(answer: outcomes.Outcome | None, **how: float) -> ProbeKind:
    upstream = FakeUpstream("s", script=lambda flight: answer)
    found = await make_ping_probe(upstream, **how)()
    assert [flight.method for flight in upstream.wire.flights] == ["ping"]
    return found.kind


async def test_an_answer_to_ping_is_good_whatever_it_is():
    assert await pinged(outcomes.result(b"{}")) is ProbeKind.GOOD
    unknown = outcomes.failed(METHOD_NOT_FOUND, "no such method")
    assert await pinged(unknown) is ProbeKind.GOOD


async def test_no_answer_to_ping_is_told_apart_from_no_link():
    assert await pinged(None, timeout=0.01) is ProbeKind.TIMEOUT
    lost = outcomes.link_lost("s", Delivery.UNKNOWN, "cut")
    assert await pinged(lost) is ProbeKind.UNREACHABLE
    damaged = outcomes.failed(-32603, "damaged", Delivery.EXECUTED)
    assert await pinged(damaged) is ProbeKind.SERVER_ERROR
    upstream = FakeUpstream("s")
    upstream.go_down()
    assert (await make_ping_probe(upstream)()).kind is ProbeKind.UNREACHABLE


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (outcomes.result(b'{"isError":true}'), CallKind.GOOD),
        (outcomes.refused(b'{"code":-32602,"message":"wrong"}'), CallKind.GOOD),
        (outcomes.refused(b'{"code":-32000,"message":"its own"}'), CallKind.GOOD),
        (outcomes.unavailable("s", "down"), CallKind.FAILED),
        (outcomes.link_lost("s", Delivery.UNKNOWN, "cut"), CallKind.FAILED),
        (outcomes.timed_out("s", Delivery.UNKNOWN, 5), CallKind.FAILED),
        (outcomes.failed(-32603, "x", Delivery.UNKNOWN, http_status=503), CallKind.FAILED),
        (outcomes.failed(-32603, "x", Delivery.UNKNOWN, http_status=404), CallKind.NEUTRAL),
        (outcomes.overloaded("s", 3), CallKind.NEUTRAL),
        (outcomes.cancelled("enough", Delivery.UNKNOWN), CallKind.NEUTRAL),
    ],
)
def test_the_end_of_a_call_counts_as_the_breaker_counts(outcome, kind):
    assert classify_call(outcome) is kind
