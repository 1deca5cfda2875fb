"""What an agent may not use is as if it had never been: in no answer, at no door, by no trace.

Two gateways have the same servers and the same agent with the same grants; one of them lacks all
that these grants hide. Whatever the agent asks, both answer the same, byte for byte.
"""

import os
from random import Random

import pytest
from tests.invisible.questions import Questions
from tests.invisible.twins import Twins
from tests.invisible.worlds import TOOLS, WorldMaker

BASE = int(os.environ.get("INVISIBLE_SEED", "1"))
WORLDS = int(os.environ.get("INVISIBLE_WORLDS", "2"))
ASKED = int(os.environ.get("INVISIBLE_QUESTIONS", "150"))


async def compare(folder, vault, seed: int, questions: int) -> tuple[list[str], int]:
    """Make a world, have it asked, and return what differed and how many tools were hidden."""
    world = WorldMaker(seed).make()
    hidden = sum(item.kind == TOOLS for item in world.hidden)
    differences: list[str] = []
    async with Twins(folder, vault, world) as twins:
        api = (await twins.hiding.served.client().get("/api/v1/openapi.json")).json()
        asked = Questions(Random(seed), world, api)
        for question in [*asked.every_list(), *(asked.one() for _ in range(questions))]:
            found = await twins.compare(question)
            if found is not None:
                differences.append(found)
        for sent, is_echo in twins.hiding.sent:
            differences += [f"{c} in {sent}" for c in world.canaries if not is_echo and c in sent]
    return differences, hidden


@pytest.mark.parametrize("seed", range(BASE, BASE + WORLDS))
async def test_whatever_an_agent_asks_hidden_things_have_no_part_in_the_answer(
    tmp_path, vault, seed
):
    differences, hidden = await compare(tmp_path, vault, seed, ASKED)
    assert hidden >= 10
    assert not differences, f"{len(differences)} differences:\n" + "\n".join(differences[:20])
