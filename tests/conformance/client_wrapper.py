"""The client that the official suite's client scenarios start, with the gateway in its way.

    conformance client --command "python client_wrapper.py" --scenario S --spec-version V -o DIR

The suite starts a mock server and calls this program with its URL; the scenario and the version
come in MCP_CONFORMANCE_SCENARIO and MCP_CONFORMANCE_PROTOCOL_VERSION. This puts a gateway in front
of the mock server and an SDK client in front of the gateway, and does what the scenario is about.
`--direct` leaves the gateway out, which shows that a failure is the gateway's. `--shared URL DIR`
takes a gateway that runs for many: a few of them at a time have their turn, and leave in DIR how
they ended.
"""

import argparse
import asyncio
import fcntl
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import mcp_types as types
from mcp import Client
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from processes import gateway
from pydantic import ValidationError
from sign_in import MOST, SIGN_IN_NEEDED, Operator, auth_of

Play = Callable[[Client], Awaitable[None]]

AT_ONCE = 3
LASTS_AT_MOST = 14.0  # seconds; with the gateway's start it stays under the suite's 30

SCENARIOS: dict[str, Play] = {}


def scenario(*names: str) -> Callable[[Play], Play]:
    """Put a function in the table as what the client does in these scenarios."""

    def add(play: Play) -> Play:
        SCENARIOS.update(dict.fromkeys(names, play))
        return play

    return add


@scenario("initialize", "request-metadata", "json-schema-ref-no-deref")
async def list_tools(client: Client) -> None:
    await client.list_tools()


@scenario("tools_call")
async def add_numbers(client: Client) -> None:
    await client.list_tools()
    await client.call_tool("add_numbers", {"a": 5, "b": 3})


@scenario("elicitation-sep1034-client-defaults", "sse-retry")
async def call_every_tool(client: Client) -> None:
    for tool in (await client.list_tools()).tools:
        await client.call_tool(tool.name, {})


@scenario("sep-2322-client-request-state")
async def answer_in_rounds(client: Client) -> None:
    await client.list_tools()
    await client.call_tool("test_mrtr_echo_state", {})
    await client.call_tool("test_mrtr_unrelated", {})
    await client.call_tool("test_mrtr_no_state", {})
    try:
        await client.call_tool("test_mrtr_no_result_type", {})
    except ValidationError:
        # The suite wants a result without its type to end the call. This SDK refuses the result,
        # which ends the call too; it only must not call again.
        pass


@scenario("json-schema-2020-12-preservation")
async def echo_schema(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    schema = tools["json_schema_2020_12_tool"].input_schema
    await client.call_tool("json_schema_echo", {"schema": schema})


@scenario("http-standard-headers")
async def use_everything(client: Client) -> None:
    await call_every_tool(client)
    for resource in (await client.list_resources()).resources:
        await client.read_resource(str(resource.uri))
    for prompt in (await client.list_prompts()).prompts:
        await client.get_prompt(prompt.name)


@scenario("http-custom-headers")
async def make_given_calls(client: Client) -> None:
    await client.list_tools()
    for call in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        await client.call_tool(call["name"], call["arguments"])


@scenario("http-invalid-tool-headers")
async def call_what_is_listed(client: Client) -> None:
    """Only the valid tool may be left in the list; each call has what its schema requires."""
    for tool in (await client.list_tools()).tools:
        required = tool.input_schema.get("required", [])
        await client.call_tool(tool.name, dict.fromkeys(required, "value"))


async def call_signed_in(url: str, operator: Operator) -> None:
    """List and call; sign in again when a call asks for that."""
    for _ in range(MOST + 1):
        operator.connect()
        async with Client(url, mode="auto") as client:
            try:
                for tool in (await client.list_tools()).tools:
                    await client.call_tool(tool.name, {})
            except MCPError as error:
                if error.error.code != SIGN_IN_NEEDED:
                    raise
            else:
                return
        operator.sign_in()
    raise SystemExit("a call wants yet another sign-in")


# The client


async def accept_defaults(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    """A user who changes nothing in the form; yes to a question without a default."""
    fields = getattr(params, "requested_schema", {}).get("properties", {})
    content = {name: field.get("default", True) for name, field in fields.items()}
    return types.ElicitResult(action="accept", content=content)


async def play(name: str, version: str, url: str) -> None:
    mode = "auto" if version in MODERN_PROTOCOL_VERSIONS else "legacy"
    async with asyncio.timeout(LASTS_AT_MOST):
        async with Client(url, mode=mode, elicitation_callback=accept_defaults) as client:
            await SCENARIOS[name](client)


@contextmanager
def through_gateway(url: str, name: str = "") -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory(prefix="junction-conformance-") as scratch:
        config = Path(scratch) / "config.json"
        entry: dict[str, Any] = {"url": url, "type": "http"}
        if name.startswith("auth/"):
            context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
            entry["auth"] = auth_of(name, context, Path(scratch))
        config.write_text(json.dumps({"mcpServers": {"mock": entry}}))
        with gateway(config) as front:
            yield front, Path(scratch) / "data"


@contextmanager
def taking_turns(folder: Path) -> Iterator[None]:
    """Wait until fewer than so many others are at it, who all hold one of a few files."""
    while True:
        for number in range(AT_ONCE):
            with open(folder / f"turn-{number}", "w") as held:
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield
                return
        time.sleep(0.02)


def play_shared(name: str, url: str, gateway: str, folder: Path) -> None:
    """Sign in to the server of a scenario through a gateway that has those of others, too."""
    if not name.startswith("auth/"):
        raise SystemExit("not one of authorization")
    server = name.removeprefix("auth/").replace("_", "-")
    status = folder / f"{server}.ended"
    status.write_text("early")
    with taking_turns(folder):
        operator = Operator(gateway, folder / "data", server)
        context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
        operator.register(url, auth_of(name, context, folder))
        asyncio.run(call_signed_in(f"{gateway}/{server}", operator))
    status.write_text("well")


def stop(signum: int, frame: object) -> NoReturn:
    raise SystemExit(128 + signum)  # so that the gateway is ended on the way out


def main(arguments: list[str]) -> None:
    warnings.filterwarnings("ignore", category=MCPDeprecationWarning)
    signal.signal(signal.SIGTERM, stop)  # what the suite sends when it has waited enough
    parser = argparse.ArgumentParser(description="A client for the official conformance suite.")
    parser.add_argument("--direct", action="store_true", help="leave the gateway out")
    parser.add_argument("--shared", nargs=2, metavar=("URL", "DIR"), help="a running gateway")
    parser.add_argument("url", help="the suite's mock server")
    chosen = parser.parse_args(arguments)
    name = os.environ["MCP_CONFORMANCE_SCENARIO"]
    version = os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"]
    if chosen.shared:
        play_shared(name, chosen.url, chosen.shared[0], Path(chosen.shared[1]))
    elif chosen.direct:
        asyncio.run(play(name, version, chosen.url))
    else:
        with through_gateway(chosen.url, name) as (front, data):
            if name.startswith("auth/"):
                asyncio.run(call_signed_in(front, Operator(front, data)))
            else:
                asyncio.run(play(name, version, front))


if __name__ == "__main__":
    main(sys.argv[1:])
