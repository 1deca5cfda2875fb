"""Conditions in a service: compiled in a child first, followed from the store, never in the way."""

import asyncio
import errno
import os
import time

import pytest
from tests.governance.test_policy_sync import Clock
from tests.store.test_policy import Tokens, give, grant_of

from mcp_junction.errors import ConditionError
from mcp_junction.governance import condition_compiler
from mcp_junction.governance.condition_compiler import ConditionCompiler
from mcp_junction.governance.policy_sync import PolicySync
from mcp_junction.policy.arguments import read_arguments
from mcp_junction.policy.decision import CallTarget
from mcp_junction.policy.grants import Binding
from mcp_junction.policy.live_policy import LivePolicy
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.store.grants import AgentRecord

READ = CallTarget("s1", "read_file", server="files")
HANGS = """
import json, sys, time
sources = json.load(sys.stdin)
for source in sources:
    if "hang" in source:
        time.sleep(3600)
    if "die" in source:
        sys.exit(9)
    print("true", flush=True)
"""


class Asked:
    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def read_arguments(self):
        return read_arguments(self.raw)

    def read_field(self, name):
        return None

    def read_claims(self):
        return {}


class Process:
    """The policy of one process, with conditions."""

    def __init__(self, store) -> None:
        self.store = store
        self.clock = Clock()
        conditions = ConditionCompiler()
        self.policy = LivePolicy({"files": "s1"}, conditions=conditions.compiled)
        self.sync = PolicySync(store, self.policy, self.clock, conditions=conditions)

    async def poll(self) -> None:
        await self.sync.follow(await self.store.generations(), self.clock.now())

    def allows(self, raw: bytes, agent: str = "a1") -> bool:
        who = Principal(agent, Role.AGENT)
        return self.policy.decide(who, None, READ, time.time(), call=Asked(raw)).allowed


@pytest.fixture
async def opened(opener):
    async def make() -> Process:
        process = Process(await opener())
        await process.sync.open()
        return process

    return make


@pytest.fixture
def child(monkeypatch, tmp_path):
    """A child that hangs at one source and dies of another."""
    program = tmp_path / "child.py"
    program.write_text(HANGS)
    monkeypatch.setattr(condition_compiler, "_CHILD", program)
    monkeypatch.setattr(condition_compiler, "TIMEOUT", 1.0)


async def test_conditions_are_compiled_once_and_what_is_wrong_is_remembered():
    made = ConditionCompiler()
    await made.compile_all(["args.x == 1", "args.x ==", "args.x == 1", ""])
    first = made.compiled["args.x == 1"]
    await made.compile_all(["args.x == 1"])
    assert made.compiled == {"args.x == 1": first}
    assert list(made.refused) == ["args.x =="]
    with pytest.raises(ConditionError, match="at character 10"):
        await made.compile("args.x ==")


async def test_what_ends_the_child_is_refused_and_the_rest_is_compiled(child):
    made = ConditionCompiler()
    texts = ["1 == 1", '"die" == args.x', "2 == 2", '"hang" == args.x', "3 == 3"]
    await made.compile_all(texts)
    assert list(made.compiled) == ["1 == 1", "2 == 2", "3 == 3"]
    assert all("too much time or memory" in str(error) for error in made.refused.values())
    assert len(made.refused) == 2


async def test_conditions_hold_here_and_elsewhere_and_change_with_their_grant(opened):
    here, there = await opened(), await opened()
    await give(here.store, grant_of(when="args.n == 1"), Tokens())
    await here.sync.refresh("a1")
    await there.poll()
    for process in (here, there):
        assert process.allows(b'{"n": 1}')
        assert not process.allows(b'{"n": 2}')
    await give(here.store, grant_of(when="args.n == 2"), Tokens("u"))
    await there.poll()
    assert there.allows(b'{"n": 2}')
    assert not there.allows(b'{"n": 1}')


async def test_the_type_of_an_agent_is_what_it_was_registered_as(opened):
    here = await opened()
    await give(here.store, grant_of(when='agent.type == "robot"'), Tokens())
    await here.sync.refresh("a1")
    assert not here.allows(b"{}")
    agent = AgentRecord("a1", "robot", created_at=1.0, created_by="ann")

    await here.store.policy.bind(agent, 2.0, lambda _: Binding(), Tokens("v"))
    await here.poll()
    assert here.allows(b"{}")


@pytest.mark.req("P-2")
async def test_a_bad_stored_condition_keeps_nothing_from_starting(opened, child):
    first = await opened()
    for name, when in (("a1", "args.n =="), ("a2", '"hang" == args.n'), ("a3", "args.n == 1")):
        await give(first.store, grant_of(name, when=when), Tokens(name))
    async with asyncio.timeout(20):
        process = await opened()
        assert not process.allows(b'{"n": 1}', "a1")
        assert not process.allows(b'{"n": "hang"}', "a2")
        assert process.allows(b'{"n": 1}', "a3")


async def test_a_condition_that_takes_long_to_compile_does_not_hold_up_others(
    opened, child, monkeypatch
):
    """The grants are in force at once, but for the one whose condition is not there yet."""
    monkeypatch.setattr("mcp_junction.governance.policy_sync._COMPILING", 0.1)
    process = await opened()
    await give(process.store, grant_of("a1", when="args.n == 1"), Tokens("a"))
    await give(process.store, grant_of("a2"), Tokens("b"))
    await process.poll()
    assert process.allows(b"{}", "a2")
    process.sync.keep_time()
    await process.sync._compile_late()
    assert process.allows(b'{"n": 1}', "a1")


async def test_a_condition_is_refused_while_no_process_can_be_started_and_not_for_ever(monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    compiler = ConditionCompiler()
    with monkeypatch.context() as without_files:
        without_files.setattr(condition_compiler.subprocess, "run", fail)
        with pytest.raises(ConditionError, match="no process can be started; try again"):
            await compiler.compile("args.a == 1")
    assert (await compiler.compile("args.a == 1")).source == "args.a == 1"


async def test_conditions_that_nobody_uses_are_forgotten(monkeypatch):
    """Who may change the policy could fill the memory with them."""
    monkeypatch.setattr(condition_compiler, "RECENT", 100)
    made = ConditionCompiler()
    (used,) = await made.compile_all(["args.used == 1"])
    for some in range(4):
        await made.compile_all([f"args.n == {some}{n:02d}" for n in range(25)])
    assert len(made.compiled) <= 10
    assert made.compiled["args.used == 1"] is used
    again = await made.compile("args.n == 000")
    assert again.source == "args.n == 000"


async def test_a_condition_that_two_ask_for_at_once_stays_while_one_of_them_holds_it(monkeypatch):
    """Else grants in force would hold one that nobody finds, when their set is made again."""
    monkeypatch.setattr(condition_compiler, "RECENT", 0)
    made = ConditionCompiler()
    for kept in range(2):
        both = await asyncio.gather(*(made.compile_all(["args.n == 1"]) for _ in range(2)))
        (held,) = both.pop(kept)
        both.clear()
        assert made.compiled.get("args.n == 1") is held
        del held


async def test_grants_in_force_keep_their_conditions(opened, monkeypatch):
    """Also where many come at once, and when another grant of the agent changes later."""
    monkeypatch.setattr(condition_compiler, "RECENT", 20)
    here = await opened()
    for n in range(5):
        await give(here.store, grant_of(f"a{n}", when=f"args.n == {n}"), Tokens(f"t{n}"))
    await here.poll()
    agents = {f"a{n}": f'{{"n": {n}}}'.encode() for n in range(5)}
    assert [here.allows(raw, agent) for agent, raw in agents.items()] == [True] * 5
    await here.sync.conditions.compile_all(f"args.other == {n}" for n in range(5))
    here.sync.put_extra("a0#x", "a0", [])
    who = Principal("a0", Role.AGENT, grantee="a0#x")
    asked = Asked(agents["a0"])
    assert here.policy.decide(who, None, READ, time.time(), call=asked).allowed


async def test_what_is_compiled_late_waits_for_as_long_as_no_child_can_be_started(
    opened, monkeypatch, caplog
):
    """It is tried for one agent each time, and all others wait, too, whatever ends the attempt."""
    failure = OSError(24, "Too many open files")
    asked = []

    def fail(sources):
        asked.append(sources)
        raise failure

    process = await opened()
    agents = [f"a{n}" for n in range(3)]
    for n, agent in enumerate(agents):
        await give(process.store, grant_of(agent, when=f"args.n == {n}"), Tokens(agent))
    with monkeypatch.context() as broken:
        broken.setattr(condition_compiler, "_try_in_child", fail)
        await process.poll()
        asked.clear()
        await process.sync._compile_late()
        assert len(asked) == 1
        assert "conditions of 3 agents cannot be compiled now" in caplog.text
        failure = ValueError("another")
        with pytest.raises(ValueError, match="another"):
            await process.sync._compile_late()
    await process.sync._compile_late()
    assert all(process.allows(b'{"n": %d}' % n, agent) for n, agent in enumerate(agents))


async def test_a_child_that_cannot_be_started_holds_up_no_revocation(opened, monkeypatch):
    """Its conditions are compiled as soon as one can be started."""

    def fail(sources):
        raise OSError(24, "Too many open files")

    process = await opened()
    await give(process.store, grant_of("a1", when="args.n == 1"), Tokens("a"))
    await give(process.store, grant_of("a2"), Tokens("b"))
    with monkeypatch.context() as broken:
        broken.setattr(condition_compiler, "_try_in_child", fail)
        await process.poll()
        assert process.allows(b"{}", "a2")
        await process.sync._compile_late()
        assert not process.allows(b'{"n": 1}', "a1")
    await process.sync._compile_late()
    assert process.allows(b'{"n": 1}', "a1")
