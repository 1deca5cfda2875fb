"""The Python SDK's client in either era, and the person in front of it, who answers questions.

The two eras differ in how a client asks to hear of something; `watching` hides that. Everything
else the SDK's client has under one name for both.
"""

import asyncio
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp import Client
from mcp.client.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPDeprecationWarning
from tests.journeys_eras.ledger import BOUND

OLD, NEW = "2025-11-25", "2026-07-28"
VERSIONS = {"old": OLD, "new": NEW}
MODES = {"old": "legacy", "new": "auto"}
HOME = "file:///home/ada"

# Both eras' names for what changed, as the server calls them.
CHANGES = {
    types.ToolListChangedNotification: "tools",
    types.PromptListChangedNotification: "prompts",
    types.ResourceListChangedNotification: "resources",
    ToolsListChanged: "tools",
    PromptsListChanged: "prompts",
    ResourcesListChanged: "resources",
}

Next = Callable[[], Awaitable[str]]


class Person:
    """Answers every question, and keeps the questions and what was said."""

    def __init__(self) -> None:
        self.answer = types.ElicitResult(action="accept", content={"name": "Ada"})
        self.asked: list[str] = []
        self.prompted: list[str] = []
        self.logs: list[tuple[str, Any]] = []
        self.news: asyncio.Queue[str] = asyncio.Queue()
        self.stream_ids: list[str] = []
        """Notifications that name a stream of ``subscriptions/listen``."""

    async def elicitation(self, context: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params.message)
        return self.answer

    async def sampling(self, context: Any, params: Any) -> types.CreateMessageResult:
        self.prompted.append(params.messages[0].content.text)
        content = types.TextContent(text="forty-two")
        return types.CreateMessageResult(role="assistant", content=content, model="a-model")

    async def roots(self, context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=HOME, name="home")])

    async def logging(self, params: Any) -> None:
        self.logs.append((params.level, params.data))

    async def message(self, message: Any) -> None:
        if isinstance(message, types.Notification):
            wire = message.model_dump_json(by_alias=True)
            if "subscriptionId" in wire:
                self.stream_ids.append(wire)
        if isinstance(message, types.ResourceUpdatedNotification):
            self.news.put_nowait(str(message.params.uri))
        elif type(message) in CHANGES:
            self.news.put_nowait(CHANGES[type(message)])


@asynccontextmanager
async def connected(
    era: str, server: Any, *, asks: bool = True, log_level: types.LoggingLevel | None = None
) -> AsyncIterator[tuple[Client, Person]]:
    """A client of an era; `asks` is whether it takes questions."""
    person = Person()
    answers: dict[str, Any] = {}
    if asks:
        answers = {
            "elicitation_callback": person.elicitation,
            "sampling_callback": person.sampling,
            "list_roots_callback": person.roots,
        }
    async with Client(
        server,
        mode=MODES[era],
        read_timeout_seconds=BOUND,
        logging_callback=person.logging,
        log_level=log_level if era == "new" else None,
        message_handler=person.message,
        **answers,
    ) as client:
        assert client.protocol_version == VERSIONS[era]
        if era == "old" and log_level is not None:
            with of_the_old_era():
                await client.set_logging_level(log_level)
        # Every server here lists this one first; alone it has no prefix.
        first = (await client.list_tools()).tools[0].name
        client.separator = first.removesuffix("echo")[-1:]
        yield client, person


def of_the_old_era() -> Any:
    """What the SDK calls deprecated is what a client of the handshake era has."""
    return warnings.catch_warnings(action="ignore", category=MCPDeprecationWarning)


@asynccontextmanager
async def watching(
    client: Client, person: Person, *kinds: str, uris: Sequence[str] = ()
) -> AsyncIterator[Next]:
    """Ask to hear of lists and resources; yields what waits for the next that changed."""
    if client.protocol_version == NEW:
        wanted = {f"{kind}_list_changed": True for kind in kinds}
        async with client.listen(**wanted, resource_subscriptions=uris) as events:
            stream = aiter(events)

            async def following() -> str:
                event = await asyncio.wait_for(anext(stream), BOUND)
                return event.uri if isinstance(event, ResourceUpdated) else CHANGES[type(event)]

            yield following
        return
    with of_the_old_era():
        for uri in uris:
            await client.subscribe_resource(uri)
    yield lambda: asyncio.wait_for(person.news.get(), BOUND)
    with of_the_old_era():
        for uri in uris:
            await client.unsubscribe_resource(uri)
    assert person.stream_ids == [], "the gateway's own stream to a server is not the client's"


# Lists, to their last page


async def pages(lister: Callable[..., Awaitable[Any]], member: str) -> list[list[Any]]:
    """Every page of a list, fresh."""
    found, cursor = [], None
    while True:
        page = await lister(cursor=cursor, cache_mode="refresh")
        found.append(getattr(page, member))
        cursor = page.next_cursor
        if cursor is None:
            return found
        assert len(found) < 100, "the pages do not end"


async def tool_names(client: Client) -> list[str]:
    return [tool.name for page in await pages(client.list_tools, "tools") for tool in page]


async def prompt_names(client: Client) -> list[str]:
    return [found.name for page in await pages(client.list_prompts, "prompts") for found in page]


async def resource_uris(client: Client) -> list[str]:
    listed = await pages(client.list_resources, "resources")
    return [str(found.uri) for page in listed for found in page]


def spelled(client: Client, own: str, key: str = "up") -> str:
    """How a tool or prompt of a server is called in front."""
    return f"{key}{client.separator}{own}" if client.separator else own


async def text_of(client: Client, tool: str, key: str = "up", /, **arguments: Any) -> str:
    """The text of a call's result, an error's too. `tool` is the server's own name."""
    result = await client.call_tool(spelled(client, tool, key), arguments)
    return "\n".join(block.text for block in result.content if block.type == "text")


async def said(client: Client, tool: str, key: str = "up", /, **arguments: Any) -> str:
    """The text of a call's result, which is no error."""
    result = await client.call_tool(spelled(client, tool, key), arguments)
    assert not result.is_error, result
    return "\n".join(block.text for block in result.content if block.type == "text")
