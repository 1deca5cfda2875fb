"""Four cells with the TypeScript SDK's clients: 1.x of the handshake era, 2.x of 2026-07-28.

A client goes through every feature in one run; each test looks at one of them.
"""

import json
import os
import subprocess
import uuid
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.journeys_eras.clients import HOME, VERSIONS
from tests.journeys_eras.offers import TOOLS
from tests.journeys_eras.stacks import DIRECT, KEY, Stacks
from tests.journeys_eras.test_cells import CELLS
from tests.peers.servers import HOME as PEERS
from tests.peers.servers import Peers, why_missing

SCRIPT = Path(__file__).with_name("client.mjs")
PACKAGES = {"old": "@modelcontextprotocol/sdk", "new": "@modelcontextprotocol/client"}
NONCE = uuid.uuid4().hex[:8]
PREFIX = "" if DIRECT else f"{KEY}."

pytestmark = [
    pytest.mark.req("J-ERAS"),
    pytest.mark.peers,
    pytest.mark.timeout(120),
    pytest.mark.parametrize(
        ("era", "server_era"), sorted({(client, server) for client, server, _ in CELLS})
    ),
]


@cache
def run(stacks: Stacks, era: str, server_era: str) -> dict[str, Any]:
    """What the client of an era saw in front of a server of an era."""
    peers = Peers(PEERS, stacks.folder)
    package = peers.home / "node/node_modules" / PACKAGES[era]
    url = stacks.http(server_era, "http").url
    ended = subprocess.run(
        ["node", str(SCRIPT), era, str(package), url, PREFIX, f"{era}{NONCE}"],
        env={**os.environ, "PATH": peers.path()},
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture
def seen(stacks, era, server_era) -> dict[str, Any]:
    if reason := why_missing():
        pytest.skip(reason)
    found = run(stacks, era, server_era)
    assert found["version"] == VERSIONS[era]
    return found


@pytest.mark.feature("elicitation")
def test_questions_to_the_user(seen, era):
    nonce = f"{era}{NONCE}"
    assert seen["elicitation"] == [
        f"{nonce}: accept Ada",
        f"{nonce}: accept Ada, accept Ada",
        "Greet accept Ada",
        "For accept Ada",
        [f"Who is {nonce}?", "First?", "Second?", "Who is to be greeted?", "Who reads?"],
    ]


@pytest.mark.feature("sampling")
def test_questions_to_the_model(seen):
    assert seen["sampling"] == ["a-model: forty-two", ["What?"]]


@pytest.mark.feature("roots")
def test_roots(seen):
    assert seen["roots"] == HOME


@pytest.mark.feature("progress")
def test_progress(seen):
    assert seen["progress"] == ["3 steps", [[step, 3, f"step {step}"] for step in (1, 2, 3)]]


@pytest.mark.feature("cancellation")
def test_cancellation(seen, stacks, era, server_era):
    assert seen["cancellation"] == ["aborted", "after"]
    ledger = stacks.http(server_era, "http").ledger
    assert ledger.wait_for(f"ts-{era}{NONCE}", "cancelled") == ["started", "cancelled"]


@pytest.mark.feature("logging")
def test_logging(seen):
    logs = [["warning", "said at warning"], ["error", "said at error"]]
    assert seen["logging"] == ["spoken", logs]


@pytest.mark.feature("list_changed")
def test_a_list_that_grew(seen):
    assert seen["list_changed"] is True


@pytest.mark.feature("subscriptions")
def test_subscriptions(seen):
    assert seen["subscriptions"] == "cell://document"


@pytest.mark.feature("completions")
def test_completions(seen):
    assert seen["completions"] == [["Ada", "Alan"], ["1", "10"]]


@pytest.mark.feature("pagination")
def test_every_tool_is_listed(seen):
    names = seen["pagination"]
    assert len(names) == len(set(names))
    assert {f"{PREFIX}{own}" for own in TOOLS} <= set(names)
