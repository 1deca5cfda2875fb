"""Clients that choose the same ids, over HTTP and over servers of every kind: nothing crosses."""

import asyncio
import random

import pytest
from tests.faults.test_colliding_ids import ODD_IDS
from tests.faults_http.wire import Client
from tests.plugin_faults import Figures
from tests.plugin_faults_http import KINDS, HttpRig

pytestmark = pytest.mark.preloaded


@pytest.mark.req("F-12", "R-ANSWER")
@pytest.mark.parametrize(
    ("clients", "calls"),
    [
        pytest.param(20, 100, id="short"),
        pytest.param(100, 1_000, id="long", marks=pytest.mark.soak),
    ],
)
async def test_clients_that_use_the_same_ids_over_http_get_their_own_answers(
    http_rig: HttpRig, figures: Figures, clients: int, calls: int
) -> None:
    for kind in KINDS:
        http_rig.add_any(kind, kind)
    gateway = http_rig.serve()
    crossed = 0

    async def talk(who: int) -> None:
        nonlocal crossed
        chance = random.Random(who)
        client = Client(gateway.port)
        await client.open()

        async def one(number: int) -> None:
            nonlocal crossed
            nonce = f"{who}/{number}"
            fault = chance.choice([None, None, "stream", "progress"])
            answer = await client.call(
                f"{chance.choice(KINDS)}:echo",
                frame_id=number,
                meta={"progressToken": 1},
                nonce=nonce,
                delay_ms=chance.randrange(3),
                **({"fault": fault} if fault else {}),
            )
            crossed += answer["result"]["structuredContent"] != {"nonce": nonce}

        for start in range(0, calls, 5):
            await asyncio.gather(*(one(number) for number in range(start, start + 5)))
        for other in client.others:
            crossed += not other["params"]["message"].startswith(f"{who}/")
        client.close()

    await asyncio.gather(*map(talk, range(clients)))
    figures(calls=clients * calls, crossed=crossed)
    assert crossed == 0


@pytest.mark.req("F-12")
@pytest.mark.parametrize("kind", KINDS)
async def test_ids_of_every_kind_are_given_back_over_http(http_rig: HttpRig, kind: str) -> None:
    http_rig.add_any(kind)
    client = Client(http_rig.serve().port)
    await client.open()
    await asyncio.gather(
        *(  # the client holds each answer's id against its own
            client.call("led:echo", frame_id=frame_id, nonce=f"{number}", delay_ms=5)
            for number, frame_id in enumerate(ODD_IDS)
        )
    )
    client.close()
