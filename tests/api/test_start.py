"""The routes are loaded before the service listens, and the model of skills never."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from tempfile import mkdtemp

import pytest
from tests.plugin_http import write_config
from tests.pulse import BLOCKED, least
from tests.registry.toolbox import tool

from mcp_junction.api.front import RestFront
from mcp_junction.config.load import load
from mcp_junction.policy.principal import Principal, Role

ROOT = Path(__file__).parents[2]


async def test_a_service_that_listens_has_its_routes_and_loads_nothing_heavy_later(tmp_path):
    """In a program of its own: in this one they may have been loaded by another test."""

    async def start() -> float:
        command = [sys.executable, "-m", "tests.api.starting", mkdtemp(dir=tmp_path)]
        program = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, stderr=PIPE)
        said, told = await asyncio.wait_for(program.communicate(), 100)
        assert program.returncode == 0, told.decode()
        seen = json.loads(said)
        assert seen["statuses"] == [200, 201, 200, 200, 404]
        assert seen["before"] is False, "or it is not seen who loaded them"
        assert seen["loaded"] is True
        assert seen["models"] == [], "there was no tool to classify yet"
        assert seen["search"] == 200
        assert seen["models_later"] == [], "the model is in a process of its own"
        assert seen["beats"] > 10
        return seen["worst"]

    assert await least(start, BLOCKED) < BLOCKED


class AnyKey:
    """Lets everybody in."""

    is_blind = False

    async def refresh(self) -> None:
        """Nothing is ever unknown."""

    def principal(self, authorization: bytes) -> Principal:
        return Principal("ann", Role.ADMIN)


async def test_a_request_before_the_routes_are_loaded_is_asked_to_come_again():
    answered, sent = [], []

    async def app(scope, receive, send):
        answered.append(scope["path"])

    async def send(message):
        sent.append(message)

    front = RestFront(AnyKey(), lambda: app, bytes, [].append, AnyKey().refresh)
    scope = {"path": "/api/v1/x", "raw_path": b"/api/v1/x", "method": "GET", "headers": []}
    scope["headers"] = [(b"authorization", b"Bearer x")]
    await front(scope, None, send)
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"1") in sent[0]["headers"]
    await front.load()
    await front(scope, None, send)
    assert answered == ["/api/v1/x"]


@pytest.mark.parametrize("hangs", [False, True])
async def test_it_listens_when_its_servers_are_up_or_have_had_their_moment(
    gateway, tmp_path, toolbox, monkeypatch, hangs
):
    monkeypatch.setattr("mcp_junction.service.SERVERS_WITHIN", 0.2 if hangs else 60)
    server = await toolbox([tool("one")])
    if hangs:
        server.answers.clear()
    config = load(str(write_config(tmp_path, {"a": {"url": server.url}}, {})), {}, {})
    served = await asyncio.wait_for(gateway(config), 30)
    assert served.registry.find("a").status == ("CONNECTING" if hangs else "CONNECTED")
    server.answers.set()
