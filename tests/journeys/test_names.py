"""How tools are spelled for whom, and how a call finds its tool."""

import re

import pytest
from tests.plugin_journeys import scripted

pytestmark = pytest.mark.preloaded

STRICT = re.compile(r"[A-Za-z0-9_-]{1,64}")


async def called(client, name):
    """What the server that was reached says it was called."""
    return (await client.read(name))["params"]["name"]


@pytest.mark.req("J-NAMES-CLIENT", "EDGE-KEYS")
@pytest.mark.parametrize("name", ["claude-ai", "Claude-Desktop 1.2", "cursor-vscode", "openai-mcp"])
async def test_a_client_that_is_strict_about_names_gets_names_it_can_take(junction, name):
    keys = ["plain", "my server", "a.b", "🚦", 'say "hi"']
    client = await junction({key: scripted("do.it", "echo") for key in keys}, client=name)
    listed = list(await client.tools())
    assert listed[:2] == ["plain__do_it", "plain__echo"]
    assert len(listed) == 10
    assert all(STRICT.fullmatch(tool) for tool in listed)
    assert [await called(client, tool) for tool in listed] == ["do.it", "echo"] * 5


@pytest.mark.req("J-NAMES-CLIENT")
async def test_any_other_client_gets_the_names_as_they_are(junction):
    client = await junction({"my server": scripted("do.it")}, client="not-claude-ai")
    assert list(await client.tools()) == ["my server:do.it"]


@pytest.mark.req("J-NAMES-LONG")
async def test_a_long_name_is_cut_the_same_way_in_every_run(junction):
    servers = {"s" * 40: scripted("t" * 60, "t" * 59 + "u")}
    first = await junction(servers, client="claude-ai")
    second = await junction(servers, client="claude-ai")
    listed = list(await first.tools())
    assert listed == list(await second.tools())
    assert len(set(listed)) == 2
    assert all(len(name) == 64 and STRICT.fullmatch(name) for name in listed)
    assert await called(first, listed[1]) == "t" * 59 + "u"


@pytest.mark.req("J-NAMES-ANY")
@pytest.mark.parametrize("client", ["claude-ai", "someone"])
async def test_a_call_may_use_any_spelling(junction, client):
    client = await junction({"one": scripted("echo"), "two": scripted("echo")}, client=client)
    for name in ("two:echo", "two.echo", "two__echo"):
        assert await called(client, name) == "echo"


@pytest.mark.req("J-NAMES-SEPARATOR", "J-CLI")
@pytest.mark.parametrize("name", ["claude-ai", "someone"])
@pytest.mark.parametrize("separator", ["/", ".", "::", "__"])
async def test_a_separator_of_ones_own_is_used_for_every_client(junction, separator, name):
    servers = {"my server": scripted("echo")}
    client = await junction(servers, "--separator", separator, client=name)
    assert list(await client.tools()) == [f"my server{separator}echo"]
    assert await called(client, f"my server{separator}echo") == "echo"


@pytest.mark.req("J-NAMES-PREFIX")
async def test_one_server_needs_no_prefix_when_told_so(junction):
    client = await junction({"only": scripted("echo", "about")}, "--prefix", "auto")
    assert list(await client.tools()) == ["echo", "about"]
    assert await called(client, "echo") == "echo"
    assert await called(client, "only:echo") == "echo"


@pytest.mark.req("J-NAMES-PREFIX")
async def test_two_servers_have_their_prefixes_unless_there_shall_be_none(junction, config):
    path = config({"one": scripted("a", "same"), "two": scripted("b", "same")})
    auto = await junction(path, "--prefix", "auto")
    assert list(await auto.tools()) == ["one:a", "one:same", "two:b", "two:same"]
    always = await junction(path, "--prefix", "always")
    assert list(await always.tools()) == ["one:a", "one:same", "two:b", "two:same"]


@pytest.mark.req("J-NAMES-PREFIX", "EDGE-CONFLICT", "SC-006")
async def test_without_prefixes_names_that_collide_stay_apart_and_the_same_in_every_run(junction):
    servers = {"one": scripted("about", "a"), "two": scripted("about", "b")}
    first = await junction(servers, "--prefix", "never")
    second = await junction(servers, "--prefix", "never")
    listed = list(await first.tools())
    assert listed == list(await second.tools())
    assert (listed[0], listed[1], listed[3]) == ("about", "a", "b")
    assert re.fullmatch(r"about_[0-9a-f]{8}", listed[2])
    pids = {(await first.read(name))["pid"] for name in (listed[0], listed[2])}
    assert len(pids) == 2


@pytest.mark.req("J-NAMES-TABLE", "EDGE-CONFLICT")
@pytest.mark.parametrize("separator", [":", "."])
async def test_names_that_could_be_split_in_two_ways_stay_two_tools(junction, separator):
    servers = {"a": scripted(f"b{separator}c"), f"a{separator}b": scripted("c")}
    client = await junction(servers, "--separator", separator)
    plain, hashed = await client.tools()
    assert plain == f"a{separator}b{separator}c"
    assert re.fullmatch(re.escape(plain) + r"_[0-9a-f]{8}", hashed)
    assert await called(client, plain) == f"b{separator}c"
    assert await called(client, hashed) == "c"


@pytest.mark.req("EDGE-CONFLICT")
async def test_a_name_is_not_given_to_another_server_when_its_own_has_crashed(junction):
    servers = {"a": scripted("b:about", "die"), "a:b": scripted("about")}
    client = await junction(servers)
    plain, _, hashed = await client.tools()
    other = (await client.read(hashed))["pid"]
    await client.refused("a:die")
    await client.heard("notifications/tools/list_changed")
    assert list(await client.tools()) == [hashed]
    assert (await client.refused(plain))["code"] == -32000
    assert (await client.read(hashed))["pid"] == other


@pytest.mark.req("S-06", "EDGE-CONFLICT")
@pytest.mark.parametrize(
    ("key", "grown", "name", "client", "flags"),
    [
        ("d__y", "y__about", "d__y__about", "claude-ai", []),
        ("d:y", "y:about", "d:y:about", "someone", []),
        ("y", "about", "about", "someone", ["--prefix", "never"]),
    ],
)
async def test_a_server_cannot_take_a_name_of_another_that_was_shown(
    junction, key, grown, name, client, flags
):
    servers = {"d": scripted("grow"), key: scripted("about")}
    client = await junction(servers, *flags, client=client)
    grow, plain = await client.tools()
    assert plain == name
    owner = (await client.read(name))["pid"]
    await client.told(grow, name=grown)
    await client.heard("notifications/tools/list_changed")
    listed = list(await client.tools())
    assert (listed[0], listed[2]) == (grow, name)
    assert re.fullmatch(re.escape(name) + "_[0-9a-f]{8}", listed[1])
    assert (await client.read(name))["pid"] == owner
    assert (await client.read(listed[1])).get("pid") != owner


@pytest.mark.req("S-06", "EDGE-CONFLICT")
async def test_a_server_that_comes_late_takes_no_name_that_was_shown(junction, gate):
    servers = {"a.b": scripted("about", gate=str(gate)), "a_b": scripted("about")}
    client = await junction(servers, list_wait_ms=200, client="claude-ai")
    await client.up("a_b__about")
    assert list(await client.tools()) == ["a_b__about"]
    owner = (await client.read("a_b__about"))["pid"]
    gate.open()
    await client.heard("notifications/tools/list_changed")
    other, same = await client.tools()
    assert same == "a_b__about"
    assert (await client.read(same))["pid"] == owner != (await client.read(other))["pid"]


@pytest.mark.req("S-06")
async def test_a_name_that_was_only_called_is_not_anothers_to_take_either(junction, gate):
    servers = {"late": scripted("about", gate=str(gate)), "quick": scripted("about")}
    client = await junction(servers, "--prefix", "never")
    owner = (await client.read("about"))["pid"]
    gate.open()
    assert (await client.read("late:about"))["pid"] != owner
    assert (await client.read("about"))["pid"] == owner
