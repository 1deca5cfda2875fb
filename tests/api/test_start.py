"""The routes are loaded behind the listener, and the loop goes on meanwhile."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pulse import BLOCKED

from mcp_junction.api.front import Front
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.tasks import TaskScope

ROOT = Path(__file__).parents[2]


@pytest.mark.req("AG-US3-AC6")
def test_the_first_request_waits_for_the_routes_and_the_loop_for_nobody(tmp_path):
    """In a program of its own: in this one they may have been loaded by another test."""
    command = [sys.executable, "-m", "tests.api.starting", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["statuses"] == [200, 201, 200, 200, 404]
    assert seen["loaded"] is False, "or there was nothing to wait for"
    assert seen["models"] == [], "there was no tool to classify yet"
    assert seen["search"] == 200
    assert seen["models_later"] == [], "the model is in a process of its own"
    assert seen["cold"] < 2.5, "the first tool, with all that has to be loaded for it"
    assert seen["beats"] > 10
    assert seen["worst"] < BLOCKED


class AnyKey:
    """Lets everybody in."""

    is_blind = False

    def principal(self, authorization: bytes) -> Principal:
        return Principal("ann", Role.ADMIN)


async def test_a_request_that_comes_before_the_loading_has_begun_waits_for_it():
    answered = []

    async def app(scope, receive, send):
        answered.append(scope["path"])

    front, tasks = Front(AnyKey(), lambda: app, bytes), TaskScope("test")
    scope = {"path": "/api/v1/x", "raw_path": b"/api/v1/x", "method": "GET", "headers": []}
    scope["headers"] = [(b"authorization", b"Bearer x")]
    asking = asyncio.ensure_future(front(scope, None, None))
    await asyncio.sleep(0)
    assert not asking.done()
    front.load(tasks)
    await asyncio.wait_for(asking, 20)
    assert answered == ["/api/v1/x"]
    await tasks.close()
