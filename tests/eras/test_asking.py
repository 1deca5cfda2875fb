"""Rounds: a stateless server's questions, put to a client that can be asked."""

import asyncio
import json
from typing import Any

import pytest
from msgspec import Raw

from mcp_junction.eras.adapters import ask_client
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome


class Client:
    """Answers with what it was asked, refuses a method or never answers it."""

    def __init__(self, refuses: str = "", ignores: str = "") -> None:
        self.refuses = refuses
        self.ignores = ignores
        self.asked: list[str] = []
        self.taken_back: list[str] = []

    async def __call__(self, method: str, params: Raw) -> Outcome:
        self.asked.append(method)
        if method == self.ignores:
            try:
                await asyncio.Event().wait()
            finally:
                self.taken_back.append(method)
        if method == self.refuses:
            return outcomes.refused(b'{"code":-1,"message":"no"}')
        return outcomes.result(json.dumps({method: json.loads(bytes(params))}).encode())


def asking(requests: Any) -> Raw:
    return Raw(json.dumps(requests).encode())


async def test_each_answer_has_the_key_of_its_question():
    client = Client()
    requests = {"a": {"method": "roots/list"}, "b": {"method": "x", "params": {"y": 1}}}
    answers = await ask_client(asking(requests), client, asyncio.Event())
    assert isinstance(answers, dict)
    found = {key: json.loads(bytes(raw)) for key, raw in answers.items()}
    assert found == {"a": {"roots/list": {}}, "b": {"x": {"y": 1}}}


@pytest.mark.parametrize("requests", [None, asking({})])
async def test_a_server_that_asks_nothing_is_answered_nothing(requests):
    assert await ask_client(requests, Client(), asyncio.Event()) == {}


async def test_one_refusal_ends_the_call():
    requests = {"a": {"method": "roots/list"}, "b": {"method": "x"}}
    client = Client(refuses="x", ignores="roots/list")
    refused = await ask_client(asking(requests), client, asyncio.Event())
    assert isinstance(refused, Outcome)
    assert (refused.code, refused.message) == (-1, "no")
    assert client.taken_back == ["roots/list"]


async def test_a_call_that_ends_takes_its_questions_back():
    client, ending = Client(ignores="roots/list"), asyncio.Event()

    async def ask(method: str, params: Raw) -> Outcome:
        ending.set()
        return await client(method, params)

    assert await ask_client(asking({"a": {"method": "roots/list"}}), ask, ending) is None
    assert client.taken_back == ["roots/list"]


@pytest.mark.parametrize("requests", [[], 5, {"a": 5}, {"a": {}}, {"a": {"method": 5}}])
async def test_questions_without_sense_are_not_put(requests):
    client = Client()
    failed = await ask_client(asking(requests), client, asyncio.Event())
    assert isinstance(failed, Outcome)
    assert failed.delivery is Delivery.EXECUTED
    assert client.asked == []


@pytest.mark.req("R-ISOLATE")
async def test_a_server_that_asks_too_much_at_once_ends_the_call_unasked():
    client = Client()
    requests = {f"q{number}": {"method": "roots/list"} for number in range(65)}
    failed = await ask_client(asking(requests), client, asyncio.Event())
    assert isinstance(failed, Outcome)
    assert failed.delivery is Delivery.EXECUTED
    assert "65 questions at once" in failed.message
    assert client.asked == []
    del requests["q0"]
    answers = await ask_client(asking(requests), client, asyncio.Event())
    assert isinstance(answers, dict)
    assert len(answers) == 64
