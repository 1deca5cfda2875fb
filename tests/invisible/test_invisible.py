"""What an agent may not use is as if it had never been: in no answer, at no door, by no trace.

Two gateways have the same servers and the same agent with the same grants; one of them lacks all
that these grants hide. Whatever the agent asks, both answer the same, byte for byte.
"""

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.invisible.questions import Questions
from tests.invisible.trouble import Trouble
from tests.invisible.twins import ACKNOWLEDGED, EVENTS, Question, Twins, plain
from tests.invisible.worlds import RESOURCES, TOOLS, WorldMaker
from tests.registry.toolbox import until

FIRST = int(os.environ.get("INVISIBLE_SEED", "1"))
WORLDS = int(os.environ.get("INVISIBLE_WORLDS", "2"))
ASKED = int(os.environ.get("INVISIBLE_QUESTIONS", "60"))
"""How many worlds are compared, from which seed on, and how many questions are asked in each beside
those for every list."""
HIDDEN_TOOLS = 12
"""Tools that a world hides from its agent at least."""
PAIRS = 1_000


class Comparison:
    """One world: what differed, and what was found in what was sent."""

    def __init__(self, twins: Twins, seed: int, api: Any) -> None:
        self.twins = twins
        self.world = twins.world
        self.random = Random(seed)
        self.questions = Questions(self.random, twins.world, api)
        self.differences: list[str] = []

    async def ask(self, count: int) -> None:
        """Ask for every list, and so many questions more."""
        asked = self.questions
        await self._ask_all([*asked.every_list(), *(asked.one() for _ in range(count))])

    async def _ask_all(self, questions: list[Question]) -> None:
        for question in questions:
            found = await self.twins.compare(question)
            if found is not None:
                self.differences.append(found)

    async def listen(self) -> None:
        """Have the agent listen at some addresses, in both eras, also for hidden resources."""
        shown = [item.name for item in self.world.visible if item.kind == RESOURCES]
        hidden = {item.name for item in self.world.hidden if item.kind == RESOURCES}
        uris = [*shown[:1], *sorted(hidden.difference(shown))]  # of two, either may be first
        for gateway in self.twins.gateways:
            for path in ("/mcp", "/mcp/mix", "/mcp/open"):
                await gateway.listen(path, uris)

    async def compare_heard(self) -> None:
        """Change something that the agent sees, at both: until then it must have heard nothing."""
        tool = next(item for item in self.world.visible if item.kind == TOOLS)
        for gateway in self.twins.gateways:
            offers = gateway.boxes[tool.server].offers[TOOLS]
            changed = [
                {**one, "description": "something else"} if one["name"] == tool.name else one
                for one in offers
            ]
            await gateway.change(tool.server, TOOLS, changed)
            await until(gateway.has_heard)
        one, two = (gateway.heard for gateway in self.twins.gateways)
        for name in one.keys() - {EVENTS}:
            heard, without = [*map(plain, one[name])], [*map(plain, two[name])]
            if heard != without:
                self.differences.append(f"{name} heard {heard}, without {without}")

        for gateway in self.twins.gateways:
            registry = gateway.served.registry
            await registry.tools.find(f"{tool.server}.{tool.name}")  # waits until it is stored
            await registry.skills.classifier.wait_until_done()

    async def fail(self) -> None:
        """Have a tool fail that the agent sees, and that has a hidden one to take its place."""
        shown = [i for i in self.world.visible if i.kind == TOOLS and "/" not in i.name]
        if not shown:
            return
        tool, hiding = shown[-1], self.twins.hiding
        hidden = next(item for item in self.world.hidden if item.kind == TOOLS)
        target = {"server_id": hidden.server, "tool_name": hidden.name}
        path = f"/api/v1/mcp/tools/{tool.server}/{tool.name}"
        answer = await hiding.served.client().patch(path, json={"fallbacks": [target]})
        assert answer.status_code == 200, answer.text
        for gateway in self.twins.gateways:
            gateway.boxes[tool.server].failing.add(tool.name)
        await self._ask_all(self.questions.failing(tool))

    async def compare_events(self) -> None:
        """Compare what the agent was told of its own calls, from the beginning to a last one."""
        last = f"last{self.random.randrange(10**9)}"
        body = {"name": "nothing", "arguments": {}}
        headers = {"x-correlation-id": last}
        await self._ask_all([Question("/api/v1/tools/call", body=body, headers=headers)])
        one, two = [await gateway.hear_events(last) for gateway in self.twins.gateways]
        if one != two:
            self.differences.append(f"events: {one}\n  without: {two}")

    def find_canaries(self) -> None:
        told = self.twins.hiding.heard
        heard = [(line, _may_echo(name, line)) for name, lines in told.items() for line in lines]
        for sent, is_echo in [*self.twins.hiding.sent, *heard]:
            found = [c for c in self.world.canaries if c in sent]
            if found and not is_echo:
                self.differences.append(f"{found} in {sent}")


def _may_echo(stream: str, line: str) -> bool:
    """Whether a line of a stream may repeat what the agent has said."""
    return stream == EVENTS or ACKNOWLEDGED in line


async def compare(folder: Path, vault: Any, seed: int, questions: int) -> tuple[list[str], int]:
    """Make a world and compare; return what differed, and how many tools were hidden."""
    world = WorldMaker(seed).make(HIDDEN_TOOLS)
    async with Twins(folder, vault, world) as twins:
        api = (await twins.hiding.served.client().get("/api/v1/openapi.json")).json()
        comparison = Comparison(twins, seed, api)
        for gateway in twins.gateways:
            await gateway.follow_events()
        await comparison.ask(questions // 2)
        await comparison.listen()
        await Trouble(Random(seed), twins.hiding).all()
        await comparison.compare_heard()
        await comparison.fail()
        await comparison.ask(questions // 2)
        await comparison.compare_events()
        comparison.find_canaries()
    return comparison.differences, sum(item.kind == TOOLS for item in world.hidden)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + WORLDS))
async def test_whatever_an_agent_asks_hidden_things_have_no_part_in_the_answer(
    tmp_path, vault, seed
):
    differences, hidden = await compare(tmp_path, vault, seed, ASKED)
    assert hidden >= HIDDEN_TOOLS
    assert not differences, f"{len(differences)} differences:\n" + "\n".join(differences[:20])


@pytest.mark.soak
async def test_a_thousand_hidden_tools_have_no_part_in_any_answer(tmp_path, vault):
    pairs, seed = 0, 1_000
    while pairs < PAIRS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        differences, hidden = await compare(folder, vault, seed, 200)
        assert not differences, f"in world {seed}:\n" + "\n".join(differences[:20])
        pairs, seed = pairs + hidden, seed + 1
