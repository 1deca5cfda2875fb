"""What a client sees of the servers' tools."""

import json

import pytest
from tests.plugin_journeys import scripted

pytestmark = pytest.mark.preloaded


@pytest.mark.req("US2-1", "FR-001", "FR-004", "FR-005", "FR-013", "US1-1")
async def test_every_tool_of_every_server_is_listed_with_its_key_in_front(junction):
    client = await junction(
        {
            "sourcebot": scripted("search_code", "list_repos"),
            "analyzer": scripted("lint"),
            "formatter": scripted("format", "check"),
        }
    )
    assert list(await client.tools()) == [
        "sourcebot:search_code",
        "sourcebot:list_repos",
        "analyzer:lint",
        "formatter:format",
        "formatter:check",
    ]


@pytest.mark.req("US2-2", "SC-006", "FR-006")
async def test_equal_tool_names_stand_side_by_side_and_each_is_callable(junction):
    client = await junction({"first": scripted("search"), "second": scripted("search", "about")})
    assert list(await client.tools()) == ["first:search", "second:search", "second:about"]
    for key in ("first", "second"):
        call = await client.read(f"{key}:search", of=key)
        assert call["params"] == {"name": "search", "arguments": {"of": key}}


@pytest.mark.req("US2-4", "EDGE-TWICE", "FR-003")
async def test_one_program_under_two_keys_is_two_servers_with_their_own_state(junction):
    same = scripted("about", "count")
    client = await junction({"instance1": same, "instance2": same})
    assert list(await client.tools()) == [
        "instance1:about",
        "instance1:count",
        "instance2:about",
        "instance2:count",
    ]
    pids = {(await client.read(f"instance{n}:about"))["pid"] for n in (1, 2)}
    assert len(pids) == 2
    assert [await client.told("instance1:count") for _ in range(3)] == ["1", "2", "3"]
    assert await client.told("instance2:count") == "1"


@pytest.mark.req("FR-005")
async def test_lists_of_servers_are_read_to_their_last_page(junction):
    names = [f"tool{n}" for n in range(25)]
    client = await junction({"paged": scripted(*names, page=4), "other": scripted("echo")})
    assert list(await client.tools()) == [*(f"paged:{name}" for name in names), "other:echo"]


@pytest.mark.req("FR-005")
async def test_a_list_can_be_given_in_pages_that_lose_nothing(junction):
    names = [f"tool{n}" for n in range(7)]
    client = await junction({"many": scripted(*names)}, page_size=3)
    first = await client.result("tools/list")
    assert [tool["name"] for tool in first["tools"]] == ["many:tool0", "many:tool1", "many:tool2"]
    assert list(await client.tools()) == [f"many:{name}" for name in names]
    refusal = await client.error("tools/list", {"cursor": "no such thing"})
    assert refusal["code"] == -32602


@pytest.mark.req("FR-008", "FR-005")
async def test_a_tool_is_described_as_its_server_described_it_but_for_its_name(junction):
    described = (
        '{"name":"odd","title":"Odd — ungewöhnlich","description":"line\\nbreak \\u00e9",'
        '"inputSchema":{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",'
        '"properties":{"x":{"type":"number","default":1.0,"maximum":1e5}},"x-order":[3,2,1]},'
        '"outputSchema":{"type":"object","required":["y"]},'
        '"annotations":{"readOnlyHint":true,"x-risk":12345678901234567890123},'
        '"icons":[{"src":"data:image/png;base64,AAAA","sizes":["48x48"]}],'
        '"execution":{"taskSupport":"optional"},"_meta":{"vendor/x":{"deep":[null,{}]}},'
        '"somethingNew":{"of":2030}}'
    )
    client = await junction({"one": scripted("echo", described=[described])})
    line = await client.answer_line(client.ask("tools/list"))
    expected = described.replace('"name":"odd"', '"name":"one:odd"')
    assert expected.encode() in line


@pytest.mark.req("US2-3", "EDGE-KEYS", "FR-004")
async def test_keys_of_any_characters_stand_before_their_tools_exactly_as_written(junction):
    keys = [
        "my server",
        "a.b",
        "a:b",
        "🚦 signals",
        'say "hi"',
        "back\\slash",
        "naïve/ключ",
        "-",
        "__",
    ]
    client = await junction({key: scripted("about", "echo") for key in keys})
    listed = list(await client.tools())
    assert listed == [f"{key}:{tool}" for key in keys for tool in ("about", "echo")]
    pids = [(await client.read(f"{key}:about"))["pid"] for key in keys]
    assert len(set(pids)) == len(keys)


@pytest.mark.req("J-FIRST-LIST")
async def test_the_first_list_waits_for_a_slow_server_and_everything_else_goes_on(junction, gate):
    client = await junction({"quick": scripted("echo"), "slow": scripted("echo", gate=str(gate))})
    asked = client.ask("tools/list")
    await client.told("quick:echo")
    await client.result("ping")
    assert not client.first(lambda message: message.get("id") == asked)
    gate.open()
    listed = (await client.answer(asked))["result"]["tools"]
    assert [tool["name"] for tool in listed] == ["quick:echo", "slow:echo"]


@pytest.mark.req("J-FIRST-LIST")
async def test_a_call_that_comes_before_its_server_is_up_waits_for_it(junction, gate):
    client = await junction({"slow": scripted("count", gate=str(gate))})
    called = client.begin("slow:count")
    gate.open()
    assert (await client.answer(called))["result"]["content"][0]["text"] == "1"


@pytest.mark.req("J-FIRST-LIST")
async def test_a_server_too_late_for_the_first_list_is_announced(junction, gate):
    servers = {"quick": scripted("echo"), "late": scripted("echo", gate=str(gate))}
    client = await junction(servers, list_wait_ms=200)
    await client.up("quick:echo")
    assert list(await client.tools()) == ["quick:echo"]
    assert not client.heard_so_far("notifications/tools/list_changed")
    gate.open()
    await client.heard("notifications/tools/list_changed")
    assert list(await client.tools()) == ["quick:echo", "late:echo"]


@pytest.mark.req("J-FIRST-LIST")
async def test_only_the_first_list_waits(junction, gate):
    servers = {"quick": scripted("echo"), "late": scripted("echo", gate=str(gate))}
    client = await junction(servers, list_wait_ms=200)
    await client.up("quick:echo")
    await client.tools()
    again = client.ask("tools/list")
    ping = client.ask("ping")
    await client.answer(ping)
    assert client.first(lambda message: message.get("id") == again), "the second list waits too"


@pytest.mark.req("J-FIRST-LIST")
async def test_a_server_that_failed_is_not_waited_for(junction):
    servers = {"broken": scripted(last_words="no luck"), "fine": scripted("echo")}
    client = await junction(servers)
    assert list(await client.tools()) == ["fine:echo"]


async def test_a_server_whose_list_changes_gives_a_new_list_and_a_notification(junction):
    client = await junction({"one": scripted("grow"), "two": scripted("echo")})
    assert list(await client.tools()) == ["one:grow", "two:echo"]
    await client.told("one:grow", name="fresh")
    await client.heard("notifications/tools/list_changed")
    assert list(await client.tools()) == ["one:grow", "one:fresh", "two:echo"]
    assert json.loads(await client.told("one:fresh"))["params"]["name"] == "fresh"


@pytest.mark.req("J-LIST-TWICE")
async def test_of_a_tool_that_is_listed_twice_the_first_stands_and_a_warning_names_it(junction):
    twice = [
        '{"name":"same","description":"the first","inputSchema":{"type":"object"}}',
        '{"name":"same","description":"the second","inputSchema":{"type":"object"}}',
    ]
    client = await junction({"one": scripted("echo", described=twice)})
    tools = await client.tools()
    assert list(tools) == ["one:echo", "one:same"]
    assert tools["one:same"]["description"] == "the first"
    complaint = await client.complaint("twice")
    assert "'one'" in complaint
    assert "'same'" in complaint


async def test_a_server_without_tools_is_served_beside_the_others(junction):
    client = await junction({"none": scripted(tools=[]), "some": scripted("echo")})
    assert list(await client.tools()) == ["some:echo"]


async def test_a_file_without_servers_serves_an_empty_list_and_says_so(junction):
    client = await junction({})
    assert await client.tools() == {}
    await client.complaint("no enabled servers")


@pytest.mark.req("J-CONFIG-LENIENT")
async def test_a_disabled_server_is_left_out(junction):
    off = {**scripted("echo"), "disabled": True}
    client = await junction({"off": off, "on": {**scripted("echo"), "autoApprove": ["echo"]}})
    assert list(await client.tools()) == ["on:echo"]
