"""A server made with the official SDK, with everything a tool may do before it answers."""

import warnings

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import SamplingMessage, TextContent
from pydantic import BaseModel

warnings.simplefilter("ignore")  # the SDK warns of what newer versions of MCP will not have

server = MCPServer("sdk-server", version="3.2.1")


class Sum(BaseModel):
    total: float
    count: int


class Name(BaseModel):
    name: str


@server.tool()
def add(numbers: list[float]) -> Sum:
    """Add numbers up."""
    return Sum(total=sum(numbers), count=len(numbers))


@server.tool()
async def steps(count: int, ctx: Context) -> str:
    """Report progress and a log message at every step."""
    for step in range(count):
        await ctx.report_progress(step + 1, count, f"step {step + 1}")
        await ctx.info(f"did step {step + 1}")
    return "done"


@server.tool()
async def greet(ctx: Context) -> str:
    """Ask the user for their name."""
    answer = await ctx.elicit("What is your name?", Name)
    return f"Hello, {answer.data.name}!" if answer.action == "accept" else answer.action


@server.tool()
async def think(about: str, ctx: Context) -> str:
    """Ask the client's model."""
    question = SamplingMessage(role="user", content=TextContent(type="text", text=about))
    answer = await ctx.session.create_message([question], max_tokens=10)
    return f"{answer.model}: {answer.content.text}"


@server.tool()
async def places(ctx: Context) -> list[str]:
    """Ask for the client's roots."""
    return [str(root.uri) for root in (await ctx.session.list_roots()).roots]


@server.tool()
def fail() -> str:
    """Raise an exception."""
    raise ValueError("that did not work")


server.run()
