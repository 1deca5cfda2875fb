"""What the server offers: tools, prompts, resources and a template, listed a few to a page."""

import re
from typing import Any

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from tests.conformance.offering.answers import STRING, Context, failure, is_modern, text
from tests.conformance.offering.levels import is_heard
from tests.conformance.offering.table import Outcome, Table, arguments
from tests.journeys_eras import news
from tests.journeys_eras.ledger import note, noted
from tests.journeys_eras.questions import CannotAsk, answered, model, places, user

PAGE = 3
GREETING, ASKING_PROMPT = "greet", "ask_before_greeting"
DOCUMENT, ASKING_DOCUMENT, ITEM = "cell://document", "cell://asking", "cell://item/{number}"
MATCHES_ITEM = re.compile(r"cell://item/(\d+)")
NUMBER = {"type": "integer"}

TOOLS = Table()
tool = TOOLS.add
PROMPTS: dict[str, list[str]] = {GREETING: ["name"], ASKING_PROMPT: []}
RESOURCES = [DOCUMENT, ASKING_DOCUMENT, *(f"cell://shelf/{number}" for number in range(5))]

Params = types.CallToolRequestParams


def given(params: Params, name: str) -> Any:
    return (params.arguments or {}).get(name)


# Tools


@tool("Answers with what it is given", arguments(text=STRING))
async def echo(ctx: Context, params: Params) -> Outcome:
    return text(given(params, "text"))


@tool("Asks the user", arguments(nonce=STRING))
async def ask_user(ctx: Context, params: Params) -> Outcome:
    nonce = given(params, "nonce")
    with noted(nonce):
        replies = await answered(ctx, params, {"who": user(f"Who is {nonce}?")})
    if isinstance(replies, types.InputRequiredResult):
        return replies
    note("answered", nonce)
    return text(f"{nonce}: {replies['who']}")


@tool("Asks the user twice, one question after the other", arguments(nonce=STRING))
async def ask_twice(ctx: Context, params: Params) -> Outcome:
    nonce = given(params, "nonce")
    if is_modern(ctx) and params.request_state is not None:
        first: Any = {"first": params.request_state}
        if params.request_state == "first":
            first = await answered(ctx, params, {"first": user("First?")}, "first")
    else:
        first = await answered(ctx, params, {"first": user("First?")}, "first")
    if isinstance(first, types.InputRequiredResult):
        return first
    # The second round's state is what the first one brought.
    second = await answered(ctx, params, {"second": user("Second?")}, first["first"])
    if isinstance(second, types.InputRequiredResult):
        return second
    return text(f"{nonce}: {first['first']}, {second['second']}")


@tool("Asks the client's model", arguments(prompt=STRING))
async def ask_model(ctx: Context, params: Params) -> Outcome:
    replies = await answered(ctx, params, {"model": model(given(params, "prompt"))})
    return replies if isinstance(replies, types.InputRequiredResult) else text(replies["model"])


@tool("Asks for the client's roots")
async def ask_roots(ctx: Context, params: Params) -> Outcome:
    replies = await answered(ctx, params, {"roots": places()})
    return replies if isinstance(replies, types.InputRequiredResult) else text(replies["roots"])


@tool("Asks the user, the model and for the roots")
async def ask_all(ctx: Context, params: Params) -> Outcome:
    questions = {"who": user("Who?"), "model": model("What?"), "roots": places()}
    replies = await answered(ctx, params, questions)
    if isinstance(replies, types.InputRequiredResult):
        return replies
    return text(", ".join(replies.values()))


@tool("Reports its progress", arguments(steps=NUMBER))
async def steps(ctx: Context, params: Params) -> Outcome:
    total = given(params, "steps")
    for step in range(1, total + 1):
        await ctx.session.report_progress(step, total, f"step {step}")
    return text(f"{total} steps")


@tool("Runs until it is cancelled", arguments(nonce=STRING))
async def hold(ctx: Context, params: Params) -> Outcome:
    with noted(given(params, "nonce")):
        # Said so that a client knows that it runs; over HTTP it opens the call's stream.
        await ctx.session.report_progress(1, None, "holding")
        await anyio.sleep_forever()
    raise AssertionError("for ever is over")


@tool("Asks the user, then runs until it is cancelled", arguments(nonce=STRING))
async def ask_and_hold(ctx: Context, params: Params) -> Outcome:
    nonce = given(params, "nonce")
    with noted(nonce):
        replies = await answered(ctx, params, {"who": user(f"Who is {nonce}?")})
        if isinstance(replies, types.InputRequiredResult):
            return replies
        note("answered", nonce)
        await anyio.sleep_forever()
    raise AssertionError("for ever is over")


@tool("Logs on four levels")
async def speak(ctx: Context, params: Params) -> Outcome:
    levels: tuple[types.LoggingLevel, ...] = ("debug", "info", "warning", "error")
    for level in levels:
        if is_modern(ctx) or is_heard(ctx, level):
            await ctx.session.send_log_message(
                level, f"said at {level}", logger="cell", related_request_id=ctx.request_id
            )
    return text("spoken")


@tool("Adds to a list and announces it", arguments(kind=STRING, name=STRING))
async def grow(ctx: Context, params: Params) -> Outcome:
    kind, name = given(params, "kind"), given(params, "name")
    if kind == "tools":
        TOOLS[name] = type(TOOLS["echo"])(name, "Grown", TOOLS["echo"].input_schema, echo)
    elif kind == "prompts":
        PROMPTS[name] = []
    else:
        RESOURCES.append(f"cell://grown/{name}")
    await news.list_changed(ctx, kind)
    return text("grown")


@tool("Announces that a resource changed", arguments(uri=STRING))
async def touch(ctx: Context, params: Params) -> Outcome:
    await news.updated(ctx, given(params, "uri"))
    return text("touched")


@tool(
    "Has an argument that is mirrored in a header",
    {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
)
async def region(ctx: Context, params: Params) -> Outcome:
    seen = ctx.request.headers.get("mcp-param-region") if ctx.request is not None else None
    return text(f"{given(params, 'region')} {seen}")


async def call_tool(ctx: Context, params: Params) -> Outcome:
    news.met(ctx)
    if params.name not in TOOLS:
        raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
    try:
        return await TOOLS[params.name].run(ctx, params)
    except CannotAsk as error:
        return failure(str(error))


# Lists


def _page(items: list[Any], params: types.PaginatedRequestParams | None) -> dict[str, Any]:
    """A page of a list, and where the next one begins."""
    start = int(params.cursor) if params is not None and params.cursor else 0
    following = start + PAGE
    cursor = str(following) if following < len(items) else None
    return {"items": items[start:following], "next_cursor": cursor}


async def list_tools(
    ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    news.met(ctx)
    page = _page([found.listed() for found in TOOLS.values()], params)
    return types.ListToolsResult(tools=page["items"], next_cursor=page["next_cursor"])


async def list_prompts(
    ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListPromptsResult:
    listed = [
        types.Prompt(name=name, arguments=[types.PromptArgument(name=word) for word in words])
        for name, words in PROMPTS.items()
    ]
    page = _page(listed, params)
    return types.ListPromptsResult(prompts=page["items"], next_cursor=page["next_cursor"])


async def list_resources(
    ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListResourcesResult:
    page = _page([types.Resource(uri=uri, name=uri) for uri in RESOURCES], params)
    return types.ListResourcesResult(resources=page["items"], next_cursor=page["next_cursor"])


async def list_templates(
    ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    listed = [types.ResourceTemplate(uri_template=ITEM, name="item")]
    return types.ListResourceTemplatesResult(resource_templates=listed)


# Prompts, resources and completions


async def get_prompt(
    ctx: Context, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    if params.name not in PROMPTS:
        raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown prompt: {params.name}")
    who = (params.arguments or {}).get("name", "nobody")
    if params.name == ASKING_PROMPT:
        replies = await answered(ctx, params, {"who": user("Who is to be greeted?")})
        if isinstance(replies, types.InputRequiredResult):
            return replies
        who = replies["who"]
    message = types.TextContent(text=f"Greet {who}")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=message)])


async def read_resource(
    ctx: Context, params: types.ReadResourceRequestParams
) -> types.ReadResourceResult | types.InputRequiredResult:
    uri = str(params.uri)
    body = f"The body of {uri}"
    if uri == ASKING_DOCUMENT:
        replies = await answered(ctx, params, {"who": user("Who reads?")})
        if isinstance(replies, types.InputRequiredResult):
            return replies
        body = f"For {replies['who']}"
    elif uri not in RESOURCES and not MATCHES_ITEM.fullmatch(uri):
        raise MCPError(code=types.INVALID_PARAMS, message="Resource not found", data={"uri": uri})
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, text=body)])


NAMES = {"name": ["Ada", "Alan", "Grace"], "number": ["1", "10", "2"]}


async def complete(ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    """Only for what is offered under the name or template that the server itself gave it."""
    ref = params.ref
    own = ref.name == GREETING if isinstance(ref, types.PromptReference) else ref.uri == ITEM
    known = NAMES.get(params.argument.name, []) if own else []
    values = [value for value in known if value.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values, total=len(values)))
