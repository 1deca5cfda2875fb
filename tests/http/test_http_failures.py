"""What an HTTP response says of a failure is told with the outcome, and replays are counted."""

import pytest
from tests.http.links import Rider, fly, http_link, landed, linked
from tests.http.origin import Origin, Visit
from tests.http.test_second_chances import Forgetful

from mcp_junction.upstream.outcome import Delivery, OutcomeKind

ERROR = {"code": -32000, "message": "no"}


@pytest.mark.req("R-RETRY", "R-BREAKER")
@pytest.mark.parametrize("has_body", [False, True])
@pytest.mark.parametrize(
    ("status", "wait", "kind"),
    [
        (429, "40", "rate_limited"),
        (503, "7", "busy"),
        (503, None, "server_fault"),
        (500, None, "server_fault"),
        (502, "7", "server_fault"),
        (401, None, "credential"),
        (403, None, "credential"),
        (400, None, "refused"),
        (418, None, "refused"),
    ],
)
async def test_the_status_of_a_response_is_told_also_if_an_error_is_in_its_body(
    status, wait, kind, has_body
):
    async def refuse(visit: Visit) -> None:
        headers = {} if wait is None else {"retry_after": wait}
        if has_body:
            frame = {"jsonrpc": "2.0", "id": visit.message["id"], "error": ERROR}
            visit.json(frame, status, **headers)
        else:
            visit.answer(status, **headers)

    async with linked(refuse) as (_, link):
        outcome = await landed(fly(link))
    assert outcome.failure is not None
    assert outcome.failure.kind == kind
    assert outcome.failure.retry_after == (float(wait) if wait else None)
    if status == 429:
        assert outcome.delivery is Delivery.NOT_SENT
    elif has_body:
        assert (outcome.delivery, outcome.code) == (None, ERROR["code"])


async def test_an_error_with_status_200_is_the_servers_own():
    async def refuse(visit: Visit) -> None:
        visit.json({"jsonrpc": "2.0", "id": visit.message["id"], "error": ERROR})

    async with linked(refuse) as (_, link):
        outcome = await landed(fly(link))
    assert (outcome.kind, outcome.failure) == (OutcomeKind.ERROR, None)


@pytest.mark.req("R-RETRY")
async def test_a_replay_for_a_lost_session_is_counted():
    server, rider = Forgetful(), Rider()
    async with Origin(server) as origin, http_link(origin.url) as link:
        server.known.clear()
        outcome = await landed(fly(link, rider=rider))
    assert outcome.kind is OutcomeKind.RESULT
    assert rider.replays == 1


async def test_a_refused_connection_is_told_apart_from_a_lost_one():
    async def cut(visit: Visit) -> None:
        visit.hang_up()

    async with linked(cut) as (_, link):
        lost = await landed(fly(link))
    assert (lost.failure.kind, lost.failure.was_sent) == ("link", True)
    refused = await landed(fly(link))
    assert (refused.failure.kind, refused.failure.was_sent) == ("link", False)
    assert refused.delivery is Delivery.NOT_SENT
