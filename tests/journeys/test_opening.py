"""The first words between a client, Junction and its servers."""

import json
from typing import Any

import pytest
from tests.plugin_journeys import scripted

from mcp_junction import __version__


@pytest.mark.req("FR-012")
async def test_it_answers_initialize_as_an_mcp_server(launch):
    client = await launch({"one": scripted("echo")})
    greeting = await client.introduce()
    assert list(greeting.pop("_meta")) == ["junction/id"], "for other Junctions"
    assert greeting == {
        "protocolVersion": "2025-11-25",
        "capabilities": {
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "completions": {},
            "logging": {},
        },
        "serverInfo": {"name": "mcp-junction", "version": __version__},
    }


@pytest.mark.req("FR-012")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_it_speaks_the_version_of_the_client(launch, version):
    client = await launch({})
    assert (await client.introduce(version=version))["protocolVersion"] == version


@pytest.mark.req("FR-012")
async def test_it_offers_its_newest_version_to_a_client_of_an_unknown_one(launch):
    client = await launch({})
    assert (await client.introduce(version="1999-12-31"))["protocolVersion"] == "2025-11-25"


@pytest.mark.req("J-CLI")
async def test_name_and_version_given_on_the_command_line_are_what_clients_see(launch):
    client = await launch({}, "--name", "my tools", "--version", "7.8.9")
    greeting = await client.introduce()
    assert greeting["serverInfo"] == {"name": "my tools", "version": "7.8.9"}


@pytest.mark.req("J-MODES")
async def test_the_stdio_command_is_the_program_without_a_command(launch, config):
    path = config({"one": scripted("echo", "count")})
    bare = await launch(path)
    named = await launch(path, command=("stdio",))
    greetings = [await bare.introduce(), await named.introduce()]
    ids = [greeting.pop("_meta")["junction/id"] for greeting in greetings]
    assert ids[0] != ids[1], "each process has its own"
    assert greetings[0] == greetings[1]
    assert await bare.tools() == await named.tools()


@pytest.mark.req("FR-012")
async def test_a_request_before_initialize_is_refused_and_a_ping_is_answered(launch):
    client = await launch({"one": scripted("echo")})
    assert await client.result("ping") == {}
    refusal = await client.error("tools/list")
    assert refusal == {"code": -32600, "message": "send initialize first"}
    await client.introduce()
    assert list(await client.tools()) == ["one:echo"]


def saying(version: Any) -> dict[str, Any]:
    """What a stateless client says of itself; without a version if that is None."""
    said = {} if version is None else {"io.modelcontextprotocol/protocolVersion": version}
    return {**said, "io.modelcontextprotocol/clientCapabilities": {}}


@pytest.mark.req("FR-012")
async def test_the_first_request_decides_the_era(launch):
    client = await launch({"one": scripted("echo")})
    meta = saying("2026-07-28")
    found = await client.result("server/discover", {"_meta": meta})
    assert found["supportedVersions"] == ["2026-07-28"]
    listed = await client.result("tools/list", {"_meta": meta})
    assert [tool["name"] for tool in listed["tools"]] == ["one:echo"]
    refusal = await client.error("initialize", {"protocolVersion": "2025-11-25"})
    assert refusal["code"] == -32022
    assert refusal["data"]["supported"] == ["2026-07-28"]


@pytest.mark.req("FR-012")
@pytest.mark.parametrize("version", [None, "2027-01-01", 5])
async def test_a_request_that_no_era_begins_with_decides_nothing(launch, version):
    client = await launch({"one": scripted("echo")})
    refused = {None: -32601, "2027-01-01": -32022, 5: -32602}[version]
    assert (await client.error("server/discover", {"_meta": saying(version)}))["code"] == refused
    found = await client.result("server/discover", {"_meta": saying("2026-07-28")})
    assert found["supportedVersions"] == ["2026-07-28"]


@pytest.mark.req("FR-012")
async def test_a_client_of_a_later_version_may_fall_back_to_the_handshake(launch):
    client = await launch({"one": scripted("echo")})
    refused = await client.error("server/discover", {"_meta": saying("2027-01-01")})
    assert refused["code"] == -32022
    await client.introduce()
    assert list(await client.tools()) == ["one:echo"]


@pytest.mark.req("FR-012")
async def test_what_is_no_frame_is_answered_and_the_conversation_goes_on(launch):
    client = await launch({"one": scripted("echo")})
    await client.introduce()
    client.send_line(b"hello?")
    client.send_line(b'{"jsonrpc":"2.0","id":"half","method":')
    client.send_line(b'{"jsonrpc":"2.0","id":"odd","method":"tools/divine"}')
    assert (await client.answer(None))["error"]["code"] == -32700
    assert (await client.answer("half"))["error"]["code"] == -32700
    assert (await client.answer("odd"))["error"]["code"] == -32601
    assert list(await client.tools()) == ["one:echo"]


@pytest.mark.req("FR-012")
async def test_a_client_may_end_lines_as_windows_does_and_begin_with_a_byte_order_mark(launch):
    client = await launch({"one": scripted("echo")})
    client.send_line(b'\xef\xbb\xbf{"jsonrpc":"2.0","id":"p","method":"ping"}\r')
    assert (await client.answer("p"))["result"] == {}


@pytest.mark.req("J-HANDSHAKE", "FR-003")
async def test_servers_are_told_the_version_and_the_capabilities_of_the_client(launch):
    client = await launch({"one": scripted()}, "--name", "gateway")
    capabilities = {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {"form": {}}}
    await client.introduce("curious", capabilities, version="2025-06-18")
    hello = (await client.read("one:about"))["initialize"]["params"]
    assert hello == {
        "protocolVersion": "2025-06-18",
        "capabilities": capabilities,
        "clientInfo": {"name": "gateway", "version": __version__},
    }


@pytest.mark.req("J-HANDSHAKE")
async def test_servers_of_a_client_that_can_do_nothing_are_told_so(launch):
    client = await launch({"one": scripted()})
    await client.introduce()
    hello = (await client.read("one:about"))["initialize"]["params"]
    assert hello["capabilities"] == {}


@pytest.mark.req("J-HANDSHAKE")
async def test_servers_run_before_the_client_has_said_a_word(launch, gate):
    client = await launch({"one": scripted(starts=str(gate))})
    pid = int(await gate.said())
    await client.introduce()
    assert (await client.read("one:about"))["pid"] == pid


@pytest.mark.req("J-HANDSHAKE", "FR-003")
async def test_a_server_hears_initialize_then_initialized_and_only_then_requests(junction):
    client = await junction({"one": scripted()})
    methods = [json.loads(line).get("method") for line in await client.read("one:seen")]
    assert methods == ["initialize", "notifications/initialized", "tools/list", "tools/call"]


async def test_a_ping_of_a_server_is_answered_by_junction_itself(junction):
    client = await junction({"one": scripted()})
    answer = await client.read("one:ask", method="ping", question="are you there?")
    assert answer == {"jsonrpc": "2.0", "id": "are you there?", "result": {}}
    assert not client.heard_so_far("ping")
