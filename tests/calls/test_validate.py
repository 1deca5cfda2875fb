"""Arguments are checked as they are sent, before they are sent."""

import asyncio
import json
import logging
import threading

import msgspec
import pytest
from tests.calls.judged_world import JudgedWorld, grant
from tests.calls.world import body
from tests.policy.test_arguments import KEPT, REFUSED

from mcp_junction.calls.stages import validate
from mcp_junction.calls.stages.validate import INLINE, ValidateArguments
from mcp_junction.governance import schemas
from mcp_junction.governance.schemas import SchemaCache
from mcp_junction.policy.arguments import read_arguments
from mcp_junction.protocol.versions import INVALID_PARAMS
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream.outcome import OutcomeKind

RESULT = OutcomeKind.RESULT
NOTE = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "stars": {"type": "integer"}},
    "required": ["title"],
}
FREE = {"type": "object"}


@pytest.fixture
def world():
    def make(mode="on", invoke="on", schema=NOTE) -> JudgedWorld:
        one = FakeUpstream("one", ("echo",))
        stage = ValidateArguments(mode, invoke)
        made = JudgedWorld(one, schemas=SchemaCache(), validate=stage)
        made.one, made.stage = one, stage
        tool = {"name": "echo"} if schema is None else {"name": "echo", "inputSchema": schema}
        made.offer(one, tools=[tool])
        made.give(grant("*"))
        return made

    return make


@pytest.mark.req("REQ-MCP-CALL-001")
async def test_arguments_that_do_not_fit_are_refused_with_every_place(world):
    made = world()
    outcome = await made.run(made.ask(arguments={"stars": "many"}))
    told = body(outcome)
    assert told["code"] == INVALID_PARAMS
    assert told["data"]["delivery"] == "not_sent"
    assert {error["path"] for error in told["data"]["errors"]} == {"", "/stars"}
    assert made.one.wire.flights == []
    assert "many" not in json.dumps(told)


@pytest.mark.req("REQ-MCP-CALL-001")
async def test_arguments_that_fit_are_sent_as_they_are(world):
    made = world()
    text = b'{"name":"one:echo","arguments":{ "title" : "\\u0061", "stars":12345678901234567890 }}'
    assert (await made.run(made.ask_raw(text))).kind is RESULT
    assert (
        b'{ "title" : "\\u0061", "stars":12345678901234567890 }' in made.one.wire.flights[0].params
    )


@pytest.mark.req("REQ-MCP-CALL-001")
@pytest.mark.parametrize(("mode", "passes"), [("off", True), ("warn", True), ("on", False)])
@pytest.mark.parametrize("is_invoke", [True, False])
async def test_each_front_has_its_own_mode(world, mode, passes, is_invoke, caplog):
    other = "on" if passes else "off"
    made = world(*((other, mode) if is_invoke else (mode, other)))
    for _ in range(3):
        call = made.ask(arguments={"stars": 1})
        call.is_invoke = is_invoke
        assert ((await made.run(call)).kind is RESULT) is passes
    warned = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == (mode == "warn")
    assert made.stage.mismatches == (3 if mode == "warn" else 0)


@pytest.mark.parametrize("schema", [None, {"type": "nonsense"}, {"$ref": "http://away.test/x"}])
async def test_a_tool_without_a_usable_schema_takes_anything(world, schema):
    made = world(schema=schema)
    assert (await made.run(made.ask(arguments={"a": 1}))).kind is RESULT


async def test_a_call_without_arguments_has_an_empty_object_of_them(world):
    made = world()
    call = made.ask_raw(b'{"name":"one:echo"}')
    assert body(await made.run(call))["code"] == INVALID_PARAMS
    made = world(schema=FREE)
    assert (await made.run(made.ask_raw(b'{"name":"one:echo"}'))).kind is RESULT


# -- judged is sent


def wrap(text: str) -> bytes:
    return b'{"name":"one:echo","arguments":%b}' % text.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("mode", ["warn", "on"])
async def test_what_parsers_read_differently_is_refused(world, mode):
    made = world(mode, schema=FREE)
    count = 0
    for text in REFUSED:
        try:
            call = made.ask_raw(wrap(text))
        except Exception:  # noqa: BLE001 - the frame itself is refused
            continue
        if not text.startswith("{"):
            continue  # never an object, which clients' frames must have
        outcome = await made.run(call)
        assert outcome.kind is OutcomeKind.ERROR, text
        assert body(outcome)["code"] == INVALID_PARAMS
        count += 1
    assert count >= 80
    assert made.one.wire.flights == []


async def test_numbers_are_judged_and_sent_as_they_are_written(world):
    made = world(schema=FREE)
    for text in KEPT:
        if not text.startswith("{"):
            continue
        call = made.ask_raw(wrap(text), idempotency_key="k")
        assert (await made.run(call)).kind is RESULT, text
        sent = json.loads(made.one.wire.flights[-1].params, parse_float=str, parse_int=str)
        seen = json.loads(call.arguments.canonical, parse_float=str, parse_int=str)
        assert sent["arguments"] == seen
        assert call.read_arguments() is call.arguments


async def test_a_number_beyond_all_floats_is_judged(world):
    made = world(schema={"properties": {"n": {"maximum": 10**401}}})
    assert (await made.run(made.ask_raw(wrap('{"n":1e401}')))).kind is RESULT
    assert body(await made.run(made.ask_raw(wrap('{"n":1.5e401}'))))["code"] == INVALID_PARAMS


# -- what it costs


async def test_large_arguments_are_read_once_and_off_the_loop(world, monkeypatch):
    loop_thread, threads = threading.get_ident(), []

    def read(raw, **options):
        threads.append(threading.get_ident())
        return read_arguments(raw, **options)

    monkeypatch.setattr(validate, "read_arguments", read)
    made = world(schema=FREE)
    call = made.ask(arguments={"text": "x" * 1024 * 1024})
    assert (await made.run(call)).kind is RESULT
    assert len(threads) == 1
    assert threads[0] != loop_thread
    assert call.arguments is None  # nobody needs it again
    small = made.ask(arguments={"text": "x" * (INLINE // 2)})
    await made.run(small)
    assert threads[1:] == [loop_thread]


async def test_a_large_call_that_is_cancelled_while_it_is_checked_is_not_sent(world):
    made = world(schema=FREE)
    call = made.ask(arguments={"text": "x" * 1024 * 1024})
    running = made.start(call)
    await asyncio.sleep(0)
    call.cancel("not wanted")
    assert (await running).kind is OutcomeKind.CANCELLED
    assert made.one.wire.flights == []


async def test_a_schema_is_compiled_once_for_all_calls(world):
    made = world()
    first = made.ask(arguments={"title": "x"})
    second = made.ask(arguments={"title": "y"})
    await made.run(first)
    await made.run(second)
    assert first.facts is second.facts
    assert first.facts.compiled is not None


@pytest.mark.parametrize(("size", "is_kept"), [(100, True), (2_000, False)])
async def test_without_a_need_only_short_arguments_stay_read(world, size, is_kept):
    made, arguments = world(), {"title": "x" * size}
    call = made.ask(arguments=arguments)
    await made.run(call)
    assert (call.arguments is not None) == is_kept
    assert msgspec.json.decode(call.params["arguments"]) == arguments


async def test_arguments_by_a_large_schema_are_checked_in_a_thread(world, monkeypatch):
    threads, compile_schema = [], schemas.compile_schema

    def compile_there(text):
        threads.append(threading.get_ident())
        return compile_schema(text)

    monkeypatch.setattr(schemas, "compile_schema", compile_there)
    large = {**NOTE, "$defs": {f"d{i}": {"type": "string"} for i in range(1_000)}}
    made = world(schema=large)
    outcome = await made.run(made.ask(arguments={"title": 1}))
    assert body(outcome)["data"]["errors"][0]["path"] == "/title"
    assert (await made.run(made.ask(arguments={"title": "x"}))).kind is RESULT
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_a_schema_of_256_kb_is_not_compiled_and_lets_calls_pass(world, monkeypatch):
    monkeypatch.setattr(schemas, "_compile", lambda *_: pytest.fail("it was compiled"))
    made = world(schema={**NOTE, "$defs": {f"d{i}": {"type": "string"} for i in range(10_000)}})
    assert (await made.run(made.ask(arguments={"title": 1}))).kind is RESULT


@pytest.mark.parametrize(("mode", "passes"), [("on", False), ("warn", True)])
async def test_arguments_of_very_many_parts_are_not_read(world, monkeypatch, mode, passes):
    monkeypatch.setattr(validate, "read_arguments", lambda *_, **__: pytest.fail("they were read"))
    made = world(mode, schema=FREE)
    outcome = await made.run(made.ask(arguments={"many": [{}] * 300_000}))
    assert (outcome.kind is RESULT) == passes
    if not passes:
        assert "too many parts" in body(outcome)["message"]
