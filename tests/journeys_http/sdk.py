"""The Python SDK's client with answers to every question, and a record of what it heard."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client
from mcp_types import (
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    ResourceUpdatedNotification,
    Root,
    TextContent,
)
from tests.journeys.client import BOUND

ROOT = "file:///home/ada"


class Answers:
    """Answers questions, and keeps them with the news that came."""

    def __init__(self) -> None:
        self.sampled: list[str] = []
        self.elicited: list[Any] = []
        self.updated: asyncio.Queue[str] = asyncio.Queue()

    async def sampling(self, context: Any, params: Any) -> CreateMessageResult:
        self.sampled.append(params.messages[0].content.text)
        content = TextContent(type="text", text="said the model")
        return CreateMessageResult(role="assistant", content=content, model="a-model")

    async def elicitation(self, context: Any, params: Any) -> ElicitResult:
        self.elicited.append(params)
        if params.mode == "url":
            return ElicitResult(action="accept")
        return ElicitResult(action="accept", content={"name": "Ada", "integer": 7})

    async def roots(self, context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=ROOT, name="home")])

    async def message(self, message: Any) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            self.updated.put_nowait(str(message.params.uri))


@asynccontextmanager
async def connected(server: Any):
    """A client that has shaken hands with ``server``, and its answers."""
    answers = Answers()
    async with Client(
        server,
        mode="legacy",
        read_timeout_seconds=BOUND,
        sampling_callback=answers.sampling,
        elicitation_callback=answers.elicitation,
        list_roots_callback=answers.roots,
        message_handler=answers.message,
    ) as client:
        yield client, answers


async def said(client: Client, tool: str, arguments: dict[str, Any], **how: Any) -> str:
    """All text of a call's result, which is no error."""
    result = await client.call_tool(tool, arguments, **how)
    assert not result.is_error, result
    return "\n".join(block.text for block in result.content if block.type == "text")


async def listed(client: Client, *tools: str) -> list[str]:
    """The tools' names, once these are among them: a server adds some after the handshake."""
    async with asyncio.timeout(BOUND):
        while True:
            names = [tool.name for tool in (await client.list_tools()).tools]
            if set(tools) <= set(names):
                return names
            await asyncio.sleep(0.05)
