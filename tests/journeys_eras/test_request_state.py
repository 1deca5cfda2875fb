"""`requestState` under attack, and what becomes of calls whose client never comes back.

The state that a client is given says which call waits for it. It is refused to anyone else, for
anything else, altered, or a second time; and the call at the server is then not resumed.
"""

import concurrent.futures
import http.client
import json
import time

import pytest
from tests.journeys_eras.guarded import ANSWER, Guarded, guarded, stop
from tests.journeys_eras.offers import DOCUMENT
from tests.journeys_eras.wire import Stream, Wire, request

REFUSED = (400, -32602)
MANY = 300

pytestmark = [pytest.mark.req("J-REQUEST-STATE"), pytest.mark.timeout(90)]

both = pytest.mark.parametrize("server", ["older", "newer"])


@pytest.fixture(scope="module")
def gateway(stacks) -> Guarded:
    with guarded(stacks, "guarded") as made:
        yield made


@both
def test_the_one_who_was_asked_goes_on(gateway, server):
    parked = gateway.park("ada", server)
    (question,) = parked.asked["inputRequests"].values()
    assert question["method"] == "elicitation/create"
    assert question["params"]["message"] == f"Who is {parked.nonce}?"
    answer = parked.resume()
    assert answer.text == f"{parked.nonce}: accept Ada"
    assert "answered" in gateway.ledgers[server].events(parked.nonce)


@both
def test_the_state_says_nothing_to_who_reads_it(gateway, server):
    state = gateway.park("ada", server).state
    for word in ("ada", "ask_user", server, gateway.keys["ada"].id):
        assert word not in state


# Attacks


@both
def test_of_another_principal_it_is_refused(gateway, server):
    parked = gateway.park("ada", server)
    mine, parked.wire = parked.wire, gateway.wire("bob")
    refused = parked.resume()
    assert refused.refusal == REFUSED
    assert parked.nonce not in json.dumps(refused.last)
    untouched(gateway, server, parked, mine)


@both
def test_with_any_character_altered_it_is_refused(gateway, server):
    parked = gateway.park("ada", server)
    state = parked.state

    def altered(position: int) -> tuple[int, int]:
        other = "A" if state[position] != "A" else "B"
        return parked.resume(requestState=state[:position] + other + state[position + 1 :]).refusal

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        found = set(threads.map(altered, range(len(state))))
    assert found == {REFUSED}
    untouched(gateway, server, parked)


@both
@pytest.mark.parametrize(
    "change",
    [
        lambda state: state[:-1],
        lambda state: state + "A",
        lambda state: state + "=",
        lambda state: state.swapcase(),
        lambda state: " " + state,
        lambda state: state.partition(".")[2],
        lambda state: "made up",
        lambda state: "",
        lambda state: state * 2_000,
        lambda state: "é",
        lambda state: 7,
        lambda state: {"state": state},
    ],
)
def test_cut_lengthened_or_made_up_it_is_refused(gateway, server, change):
    parked = gateway.park("ada", server)
    assert parked.resume(requestState=change(parked.state)).refusal == REFUSED
    untouched(gateway, server, parked)


@both
def test_for_another_tool_method_server_or_endpoint_it_is_refused(gateway, server):
    parked = gateway.park("ada", server)
    other = {"older": "newer", "newer": "older"}[server]
    for tool in (f"{server}.ask_model", f"{server}.echo", f"{other}.ask_user"):
        assert parked.resume(name=tool).refusal == REFUSED, tool
    prompt = {
        "name": f"{server}.ask_before_greeting",
        "inputResponses": parked.replies,
        "requestState": parked.state,
    }
    assert parked.wire.ask("prompts/get", prompt).refusal == REFUSED
    mine, parked.wire = parked.wire, gateway.wire("ada", f"/{server}")
    assert parked.resume().refusal == REFUSED
    untouched(gateway, server, parked, mine)


@both
def test_with_other_arguments_it_is_refused(gateway, server):
    parked = gateway.park("ada", server)
    for arguments in ({}, {"nonce": "another"}, {"nonce": parked.nonce, "more": 1}):
        assert parked.resume(arguments=arguments).refusal == REFUSED, arguments
    untouched(gateway, server, parked)


@both
def test_a_second_time_it_is_refused(gateway, server):
    parked = gateway.park("ada", server)
    assert parked.resume().text == f"{parked.nonce}: accept Ada"
    assert parked.resume().refusal == REFUSED
    assert gateway.ledgers[server].events(parked.nonce).count("answered") == 1


@both
def test_of_two_at_once_one_goes_on(gateway, server):
    parked = gateway.park("ada", server)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: parked.resume(), range(8)))
    went_on = [answer for answer in answers if "result" in answer.last]
    assert [answer.text for answer in went_on] == [f"{parked.nonce}: accept Ada"]
    assert {answer.refusal for answer in answers if answer not in went_on} == {REFUSED}


def test_an_answer_to_nothing_that_was_asked_does_not_go_on(gateway):
    parked = gateway.park("ada")
    again = parked.resume(inputResponses={"never asked": ANSWER}).result
    assert again["resultType"] == "input_required"
    assert "answered" not in gateway.ledgers["older"].events(parked.nonce)
    assert parked.resume().refusal == REFUSED, "its state was used"
    parked.asked = again
    assert parked.resume().text == f"{parked.nonce}: accept Ada"


@pytest.mark.parametrize("reply", [None, 5, [], "accept", True])
def test_an_answer_that_can_be_none_does_not_reach_the_server(gateway, reply):
    parked = gateway.park("ada")
    assert parked.resume(inputResponses=dict.fromkeys(parked.replies, reply)).refusal == REFUSED
    untouched(gateway, "older", parked)


def test_the_state_of_another_gateway_is_refused(gateway, stacks):
    parked = gateway.park("ada")
    with guarded(stacks, "guarded-too") as other:
        stranger = other.park("ada")
        assert parked.resume(requestState=stranger.state).refusal == REFUSED
        assert stranger.resume(requestState=parked.state).refusal == REFUSED
        assert stranger.resume().text == f"{stranger.nonce}: accept Ada"
    untouched(gateway, "older", parked)


# Questions are put to nobody else


@both
def test_two_principals_see_only_their_own_questions(gateway, server):
    one, two = gateway.park("ada", server), gateway.park("bob", server)
    assert two.nonce not in json.dumps(one.asked)
    assert one.nonce not in json.dumps(two.asked)
    # The later question answered first.
    assert two.resume().text == f"{two.nonce}: accept Ada"
    assert one.resume().text == f"{one.nonce}: accept Ada"


def test_on_one_pipe_a_question_of_one_principal_never_reaches_another(stacks):
    with guarded(stacks, "guarded-stdio", transport="stdio") as gateway:
        mine = gateway.park("ada")
        bob = gateway.wire("bob")
        nonces = [f"{mine.nonce}-{number}" for number in range(4)]
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            answers = list(
                threads.map(lambda n: bob.call("older.ask_user", {"nonce": n}).last, nonces)
            )
        for nonce, answer in zip(nonces, answers, strict=True):
            told = json.dumps(answer)
            assert f"Who is {mine.nonce}?" not in told
            assert not [other for other in nonces if other != nonce and f"{other}?" in told]
        again = mine.resume()
        assert not [nonce for nonce in nonces if nonce in json.dumps(again.last)]


def test_with_a_pipe_each_a_call_that_waits_keeps_nobody_from_being_asked(stacks):
    own = {"isolation": "per-session"}
    with guarded(stacks, "guarded-pipes", transport="stdio", older=own) as gateway:
        hers, his = gateway.park("ada"), gateway.park("bob")
        assert his.resume().text == f"{his.nonce}: accept Ada"
        assert hers.resume().text == f"{hers.nonce}: accept Ada"


# Those who never come back


def test_many_that_wait_are_in_nobodys_way(gateway):
    """More than a server has connections: one client's waiting calls must not shut out others."""
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        parked = list(threads.map(lambda _: gateway.park("ada"), range(MANY)))
        assert gateway.wire("bob").call("older.echo", {"text": "through"}).text == "through"
        answers = list(threads.map(lambda call: call.resume().text, parked))
    assert answers == [f"{call.nonce}: accept Ada" for call in parked]


def test_closing_the_connection_does_not_end_a_call_that_waits(gateway):
    # Each request of these clients has its own connection: the one that asked is closed already.
    parked = gateway.park("ada")
    assert gateway.wire("ada").call("older.echo", {"text": "meanwhile"}).text == "meanwhile"
    assert gateway.ledgers["older"].events(parked.nonce) == ["started"]
    assert parked.resume().text == f"{parked.nonce}: accept Ada"


@both
def test_leaving_after_coming_back_ends_the_call_at_the_server(gateway, server):
    parked = gateway.park("ada", server, "ask_and_hold")
    ledger = gateway.ledgers[server]
    body, headers = request("tools/call", parked.params())
    leaver = http.client.HTTPConnection(parked.wire.host, parked.wire.port)
    leaver.request("POST", parked.wire.path, body, {**headers, **parked.wire.authorization})
    ledger.wait_for(parked.nonce, "answered")
    assert "cancelled" not in ledger.events(parked.nonce)
    leaver.close()
    ledger.wait_for(parked.nonce, "cancelled")


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_a_call_that_waited_too_long_ends_at_the_server(stacks, transport):
    with guarded(stacks, f"expiring-{transport}", transport, parked_ms=1000) as gateway:
        parked = gateway.park("ada")
        gateway.ledgers["older"].wait_for(parked.nonce, "cancelled")
        assert parked.resume().refusal == REFUSED
        assert "answered" not in gateway.ledgers["older"].events(parked.nonce)
        late = gateway.park("ada", "newer")
        wait_out(late.wire)
        assert late.resume().refusal == REFUSED
        assert "answered" not in gateway.ledgers["newer"].events(late.nonce)


def test_revoking_the_key_ends_its_calls_that_wait_and_no_others(stacks):
    with guarded(stacks, "revoking") as gateway:
        hers, his = gateway.park("ada"), gateway.park("bob")
        gateway.revoke("ada")
        gateway.ledgers["older"].wait_for(hers.nonce, "cancelled")
        assert hers.resume().status == 401
        assert gateway.ledgers["older"].events(his.nonce) == ["started"]
        assert his.resume().text == f"{his.nonce}: accept Ada"


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_sigterm_ends_calls_that_wait(stacks, transport):
    with guarded(stacks, f"stopping-{transport}", transport, drain_ms=500) as gateway:
        parked = gateway.park("ada")
        assert stop(gateway.process) == 0
        gateway.ledgers["older"].wait_for(parked.nonce, "cancelled")
        assert "answered" not in gateway.ledgers["older"].events(parked.nonce)


# Those who listen


def test_revoking_the_key_ends_its_streams_and_no_others(stacks):
    with guarded(stacks, "revoking-listeners") as gateway:
        hers, his = listening(gateway.wire("ada")), listening(gateway.wire("bob"))
        gateway.revoke("ada")
        with hers, his:
            for frame in hers.frames():  # to its end
                assert "updated" not in frame.get("method", "")
            touch = {"uri": DOCUMENT}
            assert gateway.wire("bob").call("older.touch", touch).text == "touched"
            assert next(his.frames())["params"]["uri"] == DOCUMENT


def test_sigterm_ends_streams(stacks):
    with guarded(stacks, "stopping-listeners", drain_ms=500) as gateway:
        with listening(gateway.wire("ada")) as stream:
            gateway.process.terminate()
            left = list(stream.frames())
        assert gateway.process.wait(20) == 0
        assert all("method" not in frame for frame in left), left


def listening(wire: Wire) -> Stream:
    """A stream of news, acknowledged."""
    wanted = {"notifications": {"resourceSubscriptions": [DOCUMENT]}}
    stream = wire.open("subscriptions/listen", wanted)
    first = next(stream.frames())
    assert first["method"] == "notifications/subscriptions/acknowledged"
    return stream


def wait_out(wire: Wire) -> None:
    """Until a state given out now is surely too old; the setting is a second."""
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        assert wire.ask("tools/list").status == 200
        time.sleep(0.1)


def untouched(gateway: Guarded, server: str, parked, wire: Wire | None = None) -> None:
    """The attack did not resume the call, and did not end it either."""
    if server == "older":
        assert gateway.ledgers[server].events(parked.nonce) == ["started"]
    else:
        assert "answered" not in gateway.ledgers[server].events(parked.nonce)
    parked.wire = wire or parked.wire
    assert parked.resume().text == f"{parked.nonce}: accept Ada"
