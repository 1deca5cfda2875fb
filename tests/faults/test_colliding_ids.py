"""Ids are the client's own business: equal ones, odd ones and reused ones cross no answers."""

import asyncio
import json
import random
from collections import Counter

import pytest
from tests.faults.inside import inside
from tests.plugin_faults import Figures, Rig

from mcp_junction.testing.client import key

pytestmark = pytest.mark.preloaded

ODD_IDS = [
    1,
    "1",
    1.5,
    -1,
    0,
    "",
    " ",
    "null",
    2**63,
    2**200,
    "ä€𝄞",
    "\u2028",
    'a"b\\c',
    "x" * 1000,
    "junction-1",
    "\n\r",
]


@pytest.mark.req("F-12")
@pytest.mark.parametrize(
    ("clients", "calls"),
    [
        pytest.param(20, 150, id="short"),
        pytest.param(100, 1_000, id="long", marks=pytest.mark.soak),
    ],
)
async def test_clients_that_use_the_same_ids_on_shared_servers_get_their_own_answers(
    rig: Rig, figures: Figures, clients: int, calls: int
) -> None:
    for server in ("one", "two"):
        rig.add(server)
    chance = random.Random(12)
    crossed = 0
    async with inside(rig) as within:
        everyone = [within.client() for _ in range(clients)]
        asked: dict[tuple[int, str], str] = {}
        for start in range(0, calls, 25):
            for number in range(start, min(start + 25, calls)):
                for who, client in enumerate(everyone):
                    frame_id = [number, str(number)][chance.random() < 0.5]
                    nonce = f"{who}/{frame_id!r}"
                    asked[who, key(frame_id)] = nonce
                    server = chance.choice(["one", "two"])
                    delay = chance.randrange(3)
                    client.call(f"{server}:echo", frame_id, nonce=nonce, delay_ms=delay)
                await asyncio.sleep(0)
            await within.settled()
        for who, client in enumerate(everyone):
            answers = Counter(key(frame["id"]) for frame in client.frames)
            assert set(answers.values()) == {1}
            for frame in client.frames[1:]:
                nonce = frame["result"]["structuredContent"]["nonce"]
                crossed += nonce != asked.pop((who, key(frame["id"])))
    figures(calls=clients * calls, crossed=crossed)
    assert crossed == 0
    assert asked == {}


@pytest.mark.req("F-12")
def test_ids_of_every_kind_are_given_back_as_they_came(rig: Rig) -> None:
    rig.add("led")
    client = rig.start()
    for turn in range(3):  # and may be used again once they are answered
        client.answers.clear()
        for number, frame_id in enumerate(ODD_IDS):
            client.call("led:echo", frame_id=frame_id, nonce=f"{turn}.{number}", delay_ms=5)
        for number, frame_id in enumerate(ODD_IDS):
            answer = client.answer(frame_id)
            assert answer["result"]["structuredContent"] == {"nonce": f"{turn}.{number}"}
            assert json.dumps(answer["id"]) == json.dumps(frame_id)
        assert all(len(answers) == 1 for answers in client.answers.values())


@pytest.mark.req("F-12")
def test_an_id_that_is_still_running_is_refused_and_the_first_call_goes_on(rig: Rig) -> None:
    rig.add("led")
    client = rig.start()
    client.call("led:record", frame_id=5, nonce="first", delay_ms=400)
    client.call("led:record", frame_id=5, nonce="second")
    client.wait(lambda: len(client.answers[key(5)]) == 2, 30, "two answers to two requests")
    refused, answered = (answer.frame for answer in client.answers[key(5)])
    assert "still running" in refused["error"]["message"]
    assert answered["result"]["structuredContent"] == {"nonce": "first"}
    assert rig.ledger().runs() == {"first": 1}


@pytest.mark.req("F-12")
def test_gateways_side_by_side_do_not_mix_what_they_serve(rig: Rig) -> None:
    rig.add("led")
    gateways = [rig.start() for _ in range(4)]
    for number in range(1000, 1200):
        for who, client in enumerate(gateways):
            client.call("led:echo", frame_id=number, nonce=f"{who}.{number}")
    for who, client in enumerate(gateways):
        for number in range(1000, 1200):
            answer = client.answer(number)
            assert answer["result"]["structuredContent"] == {"nonce": f"{who}.{number}"}
