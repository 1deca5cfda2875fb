"""Junction's own tools: found, described and called from the caller's view, on the common path."""

import json

import msgspec
import pytest
from msgspec import Raw
from tests.calls.world import World, body, seen
from tests.search.tools import tool

from mcp_junction.calls.call import Snapshot
from mcp_junction.catalog import own_tools as own
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.endpoints import Endpoint, Pattern
from mcp_junction.catalog.items import ServerLists
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol import frames
from mcp_junction.protocol.names import STDIO, STRICT, Spelling
from mcp_junction.protocol.versions import INVALID_PARAMS, SERVER_INFO_KEY
from mcp_junction.sessions.stateless import StatelessClient
from mcp_junction.testing.link import FakeUpstream, greets, silence
from mcp_junction.upstream.outcome import OutcomeKind

BARE = Spelling(":", prefixed=False)
OWN = ["find_tools", "describe_tools", "call_tool"]
GITHUB = [tool("create_issue", "Create a new issue"), tool("list_issues", "List the issues")]
FILES = [tool("read_file", "Read a file from the disk", "path")]


class OwnWorld(World):
    """A caller at an endpoint that lists Junction's own tools."""

    def __init__(self, exposure: str = "search", **servers: list) -> None:
        super().__init__()
        self.upstreams = {key: FakeUpstream(key) for key in servers}
        catalog = Catalog(exposure=exposure)
        for key, tools in servers.items():
            offering = ServerLists(self.upstreams[key], tuple(tools))
            catalog = catalog.with_offering(offering, list(servers))
        self.put(catalog)

    def put(self, catalog: Catalog) -> None:
        self.search.follow(catalog)
        self.snapshot = Snapshot(catalog, self.handlers)

    def listed(self) -> list[dict]:
        view = self.snapshot.catalog.view(self.session.spelling, scope=self.session.scope)
        return json.loads(view.items.page())["tools"]

    async def ask(self, name: str, /, **arguments):
        return await self.run(self.call(name, arguments=arguments))

    async def told(self, name: str, /, **arguments):
        """What an own tool says; its text is the same."""
        said = body(await self.ask(name, **arguments))
        (content,) = said["content"]
        assert json.loads(content["text"]) == said["structuredContent"]
        return said["structuredContent"]

    async def found(self, query: str, **more) -> list[str]:
        return [
            each["name"] for each in (await self.told("find_tools", query=query, **more))["tools"]
        ]


@pytest.mark.req("AG-US7-AC7")
@pytest.mark.parametrize("spelling", [STDIO, STRICT, BARE, Spelling("_"), Spelling("/")])
async def test_own_tools_have_no_prefix_whatever_the_spelling(spelling):
    world = OwnWorld(github=GITHUB)
    world.session.spelling = spelling
    assert [each["name"] for each in world.listed()] == OWN
    assert (await world.ask("find_tools", query="issue")).kind is OutcomeKind.RESULT


async def test_where_everything_is_exposed_they_are_not_there():
    world = OwnWorld("all", github=GITHUB)
    assert [each["name"] for each in world.listed()] == [
        "github:create_issue",
        "github:list_issues",
    ]
    assert body(await world.ask("find_tools", query="issue"))["code"] == INVALID_PARAMS


async def test_an_endpoint_says_for_itself_what_it_lists():
    world = OwnWorld("all", github=GITHUB, files=FILES)
    world.session.endpoint = Endpoint("mcp/few", (Pattern("files"),), exposure="search")
    assert [each["name"] for each in world.listed()] == OWN
    assert await world.found("create issue") == [], "what is not at the endpoint is not found"
    assert await world.found("read file") == ["files:read_file"]
    outcome = await world.ask("call_tool", name="github:create_issue")
    assert body(outcome)["code"] == INVALID_PARAMS


async def test_the_search_names_the_servers_that_can_be_searched():
    world = OwnWorld(github=GITHUB, files=FILES)
    assert "github (2), files (1)" in world.listed()[0]["description"]
    world.put(world.snapshot.catalog.without("github"))
    words = world.listed()[0]["description"]
    assert "files (1)" in words
    assert "github" not in words
    many = own.own_offers({f"s{n}": 1 for n in range(100)})[0].members["description"]
    assert b"and 60 more servers" in bytes(many)
    assert b"No server is connected" in bytes(own.own_offers({})[0].members["description"])


@pytest.mark.req("AG-US2-AC7")
async def test_what_is_found_comes_in_the_order_of_relevance_with_its_server_and_purpose():
    world = OwnWorld(files=FILES, github=GITHUB, jira=GITHUB)
    found = (await world.told("find_tools", query="create a github issue"))["tools"]
    assert found[0] == {
        "name": "github:create_issue",
        "server": "github",
        "description": "Create a new issue",
    }
    assert [each["name"] for each in found[:2]] == ["github:create_issue", "jira:create_issue"]
    assert await world.found("create a github issue", limit=1) == ["github:create_issue"]


async def test_names_are_found_in_the_spelling_of_the_caller():
    world = OwnWorld(github=GITHUB)
    world.session.spelling = STRICT
    assert await world.found("create issue", limit=1) == ["github__create_issue"]


async def test_a_long_description_is_cut_and_an_odd_one_left_out():
    world = OwnWorld(s=[tool("long", "word " * 1000), tool("odd", 7)])
    long, odd = (await world.told("find_tools", query="long odd"))["tools"]
    assert len(long["description"]) == 300
    assert odd["description"] == ""


async def test_nothing_found_comes_with_a_hint():
    told = await OwnWorld(github=GITHUB).told("find_tools", query="penguin")
    assert told["tools"] == []
    assert "other words" in told["hint"]


@pytest.mark.req("AG-US2-AC3", "AG-US6-AC4")
async def test_tools_of_a_server_that_left_are_not_found_and_when_it_is_back_they_are():
    world = OwnWorld(github=GITHUB, files=FILES)
    before = world.snapshot.catalog
    assert await world.found("issue") != []
    world.put(before.without("github"))
    assert await world.found("issue") == []
    assert "unknown" in await world.told("describe_tools", names=["github:create_issue"])
    world.put(before)
    assert await world.found("issue") != []


async def test_a_tool_is_described_as_a_list_would_describe_it():
    world = OwnWorld(files=FILES)
    told = await world.told("describe_tools", names=["files:read_file", "files.read_file"])
    plain = json.loads(Catalog().with_offering(
        ServerLists(world.upstreams["files"], tuple(FILES)), ["files"]
    ).view(STDIO).items.page())["tools"]  # fmt: skip
    assert told["tools"] == plain * 2


async def test_what_cannot_be_described_is_named_with_what_may_be_meant():
    world = OwnWorld(files=FILES)
    told = await world.told("describe_tools", names=["files:read_file", "files:red_file"])
    assert len(told["tools"]) == 1
    assert told["unknown"] == [{"name": "files:red_file", "did_you_mean": ["files:read_file"]}]
    outcome = await world.ask("describe_tools", names=["nothing", "find_tools"])
    assert body(outcome)["isError"]


@pytest.mark.req("FR-006")
async def test_a_call_through_call_tool_reaches_the_server_as_a_direct_one_would():
    world = OwnWorld(files=FILES)
    arguments = b'{"path": "x", "n":1.0, "big":12345678901234567890}'
    inner = b'{"name":"files:read_file","arguments":%b}' % arguments
    params = b'{"name":"call_tool","arguments":%b,"_meta":{"progressToken":7}}' % inner
    call = world.call_raw("call_tool", params)
    outcome = await world.run(call)
    assert outcome.kind is OutcomeKind.RESULT
    (flight,) = world.upstreams["files"].wire.flights
    sent = frames.members(flight.params)
    assert bytes(sent["arguments"]) == arguments
    assert bytes(sent["name"]) == b'"read_file"'
    assert call.progress_token is not None
    (event,) = world.sink.calls
    assert (event.route.pair.server, event.target) == ("files", "files:read_file"), (
        "the tool that was called"
    )


async def test_a_call_through_call_tool_can_be_cancelled_and_ends_in_time():
    world = OwnWorld(slow=[tool("wait")])
    world.upstreams["slow"].wire.script = greets(["wait"], silence)
    call = world.call("call_tool", arguments={"name": "slow:wait"})
    running = world.start(call)
    while call.flight is None:
        await world.tasks.settle(0.01)
    call.cancel("no longer wanted")
    assert (await running).kind is OutcomeKind.CANCELLED
    assert world.upstreams["slow"].wire.cancelled


@pytest.mark.parametrize("name", ["nothing", "find_tools", "call_tool", "files:red_file", ""])
async def test_call_tool_calls_tools_of_servers_and_nothing_else(name):
    world = OwnWorld(files=FILES)
    outcome = await world.ask("call_tool", name=name, arguments={"name": "files:read_file"})
    assert body(outcome)["code"] == INVALID_PARAMS
    assert "unknown tool" in body(outcome)["message"]
    assert not world.upstreams["files"].wire.flights


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("find_tools", b"{}", "query"),
        ("find_tools", b'{"query":""}', "query"),
        ("find_tools", b'{"query":"x","limit":0}', "limit"),
        ("find_tools", b'{"query":"x","limit":51}', "limit"),
        ("find_tools", b'{"query":"x","more":1}', "more"),
        ("find_tools", b'{"query":"%b"}' % (b"x" * 1001), "query"),
        ("find_tools", b"[]", "object"),
        ("describe_tools", b'{"names":[]}', "names"),
        ("describe_tools", b'{"names":"files:read_file"}', "names"),
        ("call_tool", b'{"arguments":{}}', "name"),
        ("call_tool", b'{"name":"files:read_file","arguments":[]}', "object"),
        ("call_tool", b'{"name":"x:y","name":"files:read_file"}', "repeated"),
    ],
)
async def test_arguments_that_are_not_right_are_told_to_the_model(name, arguments, words):
    world = OwnWorld(files=FILES)
    outcome = await world.run(
        world.call_raw(name, b'{"name":"%b","arguments":%b}' % (name.encode(), arguments))
    )
    said = body(outcome)
    assert (outcome.kind, said["isError"]) == (OutcomeKind.RESULT, True)
    assert words in said["content"][0]["text"]
    assert not world.upstreams["files"].wire.flights


@pytest.mark.req("EDGE-CONFLICT")
@pytest.mark.parametrize("own_name", OWN)
async def test_a_servers_tool_of_the_same_name_carries_a_hash_and_can_be_called(own_name):
    world = OwnWorld(impostor=[tool(own_name, "a penguin")], other=[tool("x")])
    world.session.spelling = BARE
    assert [each["name"] for each in world.listed()] == OWN
    (spelled,) = await world.found("penguin")
    assert spelled.startswith(f"{own_name}_")
    for name in (spelled, f"impostor:{own_name}", f"impostor__{own_name}"):
        outcome = await world.ask("call_tool", name=name, arguments={"q": name})
        assert body(outcome)["arguments"] == {"q": name}
        assert (await world.ask(name)).kind is OutcomeKind.RESULT, "also without call_tool"
    assert len(world.upstreams["impostor"].wire.flights) == 6
    await world.ask(own_name, query="x", names=["x"])
    assert len(world.upstreams["impostor"].wire.flights) == 6, "the plain name is ours"


async def test_a_server_and_tool_that_run_together_to_an_own_name_do_not_take_it():
    world = OwnWorld(find=[tool("tools")])
    world.session.spelling = Spelling("_")
    assert (await world.told("find_tools", query="tools"))["tools"][0]["server"] == "find"
    world.put(world.snapshot.catalog.without("find"))
    assert (await world.told("find_tools", query="tools"))["tools"] == []


async def test_a_stateless_client_is_answered_in_its_own_way():
    world = OwnWorld(files=FILES)
    world.session = StatelessClient(LOCAL_OWNER, world.session.endpoint, STDIO, {}, Raw(b"{}"))
    for said in (
        seen(await world.ask("find_tools", query="file")),
        seen(await world.ask("find_tools")),
    ):
        assert said["resultType"] == "complete"
        assert said["_meta"][SERVER_INFO_KEY] == {"name": "test", "version": "0"}


async def test_nothing_is_indexed_before_somebody_searches():
    world = OwnWorld(files=FILES)
    await world.ask("call_tool", name="files:read_file")
    assert world.search.indexed == 0
    await world.found("file")
    assert world.search.indexed == 1


@pytest.mark.parametrize("offer", own.own_offers({"one": 1}), ids=OWN)
def test_what_they_say_they_take_is_an_object_with_what_is_required(offer):
    said = {key: msgspec.json.decode(raw) for key, raw in offer.members.items()}
    schema = said["inputSchema"]
    assert set(schema["required"]) <= set(schema["properties"])
    assert schema["additionalProperties"] is False
    assert said["annotations"]["readOnlyHint"] is (offer.name != "call_tool")
