"""Names of 2026-07-28: each request says who asks, so each list is spelled for whoever asked."""

import pytest
from tests.journeys_eras.stacks import DIRECT
from tests.journeys_eras.wire import CLIENT_KEY, Wire, envelope

pytestmark = [
    pytest.mark.req("J-ERA-HEADERS"),
    pytest.mark.timeout(60),
    pytest.mark.skipif(DIRECT, reason="only a gateway renames"),
    pytest.mark.parametrize("server_era", ["old", "new"]),
]


@pytest.fixture
def wire(stacks, server_era) -> Wire:
    return Wire(stacks.http(server_era, "http").url)


def listed(wire: Wire, client: str | None) -> dict:
    meta = envelope()
    del meta[CLIENT_KEY]
    if client is not None:
        meta[CLIENT_KEY] = {"name": client, "version": "1"}
    return wire.ask("tools/list", meta=meta).result


@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("claude-ai", "up__echo"),
        ("Visual Studio Code", "up__echo"),
        ("codex-mcp-client", "up__echo"),
        ("a-new-one", "up.echo"),
        (None, "up.echo"),
    ],
)
def test_a_list_is_spelled_for_the_client_that_asks(wire, client, name):
    found = listed(wire, client)
    assert found["tools"][0]["name"] == name
    assert found["cacheScope"] == "private", "who asks decides what it says"


@pytest.mark.parametrize("name", ["up.echo", "up__echo", "up:echo"])
def test_every_spelling_is_taken_on_a_call_and_the_server_gets_its_own(wire, name):
    # A server of 2026-07-28 refuses a call whose Mcp-Name is not the name in its body.
    assert wire.call(name, {"text": "hi"}).text == "hi"
    assert wire.ask("prompts/get", {"name": name.replace("echo", "greet")}).status == 200
