"""Seven real servers behind one gateway: what comes through is what they say themselves."""

import asyncio
import json
import re
import subprocess

import pytest
from mcp import Client as SDKClient
from mcp import StdioServerParameters
from mcp_types import Implementation
from tests.journeys.client import BOUND, Client
from tests.plugin_journeys import PROGRAM, own_environment

pytestmark = pytest.mark.peers

STRICT = re.compile(r"[A-Za-z0-9_-]{1,64}")

WRITING = [
    ("filesystem", "write_file", {"path": "{scratch}/plan.md", "content": "# Plan — é\n"}),
    ("filesystem", "create_directory", {"path": "{scratch}/sub"}),
    ("git", "git_add", {"repo_path": "{scratch}", "files": ["plan.md"]}),
    ("git", "git_commit", {"repo_path": "{scratch}", "message": "Plan"}),
    (
        "memory",
        "create_entities",
        {"entities": [{"name": "Ada", "entityType": "person", "observations": ["writes notes"]}]},
    ),
]

# Calls whose answer is the same however often and by whomever they are made.
READING = [
    ("everything", "echo", {"message": "hello é 🚦"}),
    ("everything", "get-sum", {"a": 1.5, "b": 2}),
    ("everything", "get-annotated-message", {"messageType": "error", "includeImage": True}),
    ("everything", "get-structured-content", {"location": "Chicago"}),
    ("everything", "get-resource-links", {"count": 3}),
    ("everything", "get-tiny-image", {}),
    ("everything", "get-sum", {"a": "not a number"}),
    ("filesystem", "read_text_file", {"path": "{scratch}/plan.md"}),
    ("filesystem", "list_directory", {"path": "{scratch}"}),
    ("filesystem", "read_text_file", {"path": "/etc/passwd"}),
    ("git", "git_status", {"repo_path": "{scratch}"}),
    ("git", "git_log", {"repo_path": "{scratch}", "max_count": 5}),
    ("memory", "read_graph", {}),
    ("memory", "search_nodes", {"query": "Ada"}),
    (
        "sequential-thinking",
        "sequentialthinking",
        {"thought": "begin", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
    ),
    (
        "time",
        "convert_time",
        {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
    ),
    ("time", "convert_time", {"source_timezone": "Moon/Dark_Side", "time": "12:00"}),
    ("fetch", "fetch", {"url": "http://127.0.0.1:1/"}),
]


@pytest.fixture
def repository(peers):
    """The servers, with a repository in which one can commit."""
    for setting in ("user.name=A Test", "user.email=test@example.invalid"):
        name, _, value = setting.partition("=")
        subprocess.run(["git", "-C", peers.scratch, "config", name, value], check=True)
    return peers


def filled(arguments, peers):
    return json.loads(json.dumps(arguments).replace("{scratch}", str(peers.scratch)))


async def directly(entry):
    """A client of the server itself."""
    client = await Client.start([entry["command"], *entry["args"]], own_environment(entry["env"]))
    await client.introduce()
    return client


@pytest.mark.req("FR-005", "FR-007", "FR-008", "US1-1", "US2-1")
async def test_what_comes_through_is_what_the_servers_say_themselves(junction, repository):
    entries = repository.entries()
    through = await junction(entries)
    listed = await through.tools()
    for server, tool, arguments in WRITING:
        call = {"name": f"{server}:{tool}", "arguments": filled(arguments, repository)}
        result = await through.result("tools/call", call)
        assert not result.get("isError"), result
    direct = dict(zip(entries, await asyncio.gather(*map(directly, entries.values())), strict=True))
    try:
        own = {
            f"{key}:{name}": {**tool, "name": f"{key}:{name}"}
            for key, client in direct.items()
            for name, tool in (await client.tools()).items()
        }
        assert listed == own
        for server, tool, arguments in READING:
            arguments = filled(arguments, repository)
            call = {"name": tool, "arguments": arguments}
            expected = await direct[server].request("tools/call", call)
            got = await through.request("tools/call", {**call, "name": f"{server}:{tool}"})
            del got["id"], expected["id"]
            assert got == expected, call
    finally:
        for client in direct.values():
            await client.kill()
    assert (repository.scratch / "plan.md").read_text() == "# Plan — é\n"


@pytest.mark.req("J-HANDSHAKE")
async def test_servers_see_what_the_client_can_do_and_use_it(junction, repository):
    entries = {key: repository.entries()[key] for key in ("everything", "filesystem")}
    root = repository.scratch / "root"
    root.mkdir()
    capabilities = {"sampling": {}, "elicitation": {}, "roots": {"listChanged": True}}
    client = await junction(entries, capabilities=capabilities)

    async def answer_roots():
        answered = []
        while True:
            await client.until(lambda: client.heard_so_far("roots/list")[len(answered) :])
            answered.append(client.heard_so_far("roots/list")[len(answered)])
            roots = [{"uri": root.as_uri(), "name": "root"}]
            client.respond(answered[-1], {"roots": roots})

    answering = asyncio.create_task(answer_roots())
    try:
        await client.tools()
        await client.up("everything:get-roots-list")
        assert root.as_uri() in await client.told("everything:get-roots-list")
        await client.until(lambda: len(client.heard_so_far("roots/list")) == 2)
        allowed = "filesystem:list_allowed_directories"
        async with asyncio.timeout(BOUND):  # it looks at a folder before it allows it
            while str(root) not in await client.told(allowed):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.05)
        asked = client.begin("everything:trigger-sampling-request", prompt="Say hi", maxTokens=5)
        question = await client.heard("sampling/createMessage")
        text = {"type": "text", "text": "hi from the model"}
        client.respond(question, {"role": "assistant", "content": text, "model": "m"})
        assert "hi from the model" in json.dumps(await client.answer(asked))
        asked = client.begin("everything:trigger-elicitation-request")
        question = await client.heard("elicitation/create")
        client.respond(question, {"action": "decline"})
        assert "decline" in json.dumps(await client.answer(asked))
    finally:
        answering.cancel()


@pytest.mark.req("J-NAMES-CLIENT", "FR-012", "US3-1")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdks_client_sees_strict_names_and_uses_all_seven(repository, config, mode):
    path = str(config(repository.entries()))
    parameters = StdioServerParameters(
        command=str(PROGRAM), args=["--config", path], env=own_environment()
    )
    info = Implementation(name="claude-ai", version="0.1.0")
    progress = []

    async def on_progress(done, total, message):
        progress.append((done, total))

    async with SDKClient(
        parameters, mode=mode, client_info=info, read_timeout_seconds=BOUND
    ) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert all(STRICT.fullmatch(name) for name in names)
        assert {name.partition("__")[0] for name in names} == set(repository.entries())
        for server, tool, arguments in WRITING:
            name = f"{server}__{tool}"
            result = await client.call_tool(name, filled(arguments, repository))
            assert not result.is_error, result
        graph = await client.call_tool("memory__read_graph", {})
        assert graph.structured_content["entities"][0]["name"] == "Ada"
        logged = await client.call_tool("git__git_log", {"repo_path": str(repository.scratch)})
        assert "Plan" in logged.content[0].text
        await client.call_tool(
            "everything__trigger-long-running-operation",
            {"duration": 0.3, "steps": 3},
            progress_callback=on_progress,
        )
        assert progress == [(1, 3), (2, 3), (3, 3)]
        fetched = await client.call_tool("fetch__fetch", {"url": "http://127.0.0.1:1/"})
        assert fetched.is_error
