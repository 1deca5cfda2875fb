"""Tools that answer in one round or ask while they run."""

import json

import anyio
import mcp_types as types
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

from .answers import (
    STRING,
    WAV,
    Context,
    ask,
    contents,
    declares,
    embedded,
    failure,
    form,
    image,
    is_modern,
    sampling,
    text,
)
from .levels import is_heard
from .table import Outcome, Table, arguments

STEP = 0.05  # seconds between notifications, as the suite describes its tools

BUS = InMemorySubscriptionBus()
TOOLS = Table()
tool = TOOLS.add


# Content


@tool("Returns text")
async def test_simple_text(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    return text("This is a simple text response for testing.")


@tool("Returns an image")
async def test_image_content(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    return contents(image())


@tool("Returns audio")
async def test_audio_content(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    return contents(types.AudioContent(data=WAV, mime_type="audio/wav"))


@tool("Returns an embedded resource")
async def test_embedded_resource(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    body = "This is an embedded resource content."
    return contents(embedded("test://embedded-resource", "text/plain", body))


@tool("Returns text, an image and a resource")
async def test_multiple_content_types(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    return contents(
        types.TextContent(text="Multiple content types test:"),
        image(),
        embedded(
            "test://mixed-content-resource", "application/json", '{"test":"data","value":123}'
        ),
    )


@tool("Fails, and says so in its result")
async def test_error_handling(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    return failure("This tool intentionally returns an error for testing")


# Notifications while a call runs


async def log(ctx: Context, message: str) -> None:
    if not is_modern(ctx) and not is_heard(ctx, "info"):
        return
    await ctx.session.send_log_message(
        "info", message, logger="fixture", related_request_id=ctx.request_id
    )


@tool("Logs three times")
async def test_tool_with_logging(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    await log(ctx, "Tool execution started")
    await anyio.sleep(STEP)
    await log(ctx, "Tool processing data")
    await anyio.sleep(STEP)
    await log(ctx, "Tool execution completed")
    return text("Logged three messages")


@tool("Logs once; in 2026-07-28 only for a request that asks for logs")
async def test_logging_tool(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    await log(ctx, "Logging tool executed")
    return text("Logged one message")


@tool("Reports progress three times")
async def test_tool_with_progress(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    await ctx.session.report_progress(0, 100, "Completed step 0 of 100")
    await anyio.sleep(STEP)
    await ctx.session.report_progress(50, 100, "Completed step 50 of 100")
    await anyio.sleep(STEP)
    await ctx.session.report_progress(100, 100, "Completed step 100 of 100")
    return text("Reported progress three times")


@tool("Says something, closes its stream and answers on the resumed one")
async def test_reconnection(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    await log(ctx, "Closing the stream")
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    # At once, long before anyone resumes: an answer that comes while the SDK takes a stream up
    # again, between what it repeats and what it passes on, reaches nobody.
    return text("Reconnection test completed")


# Questions while a call runs: the handshake era only


@tool("Asks the client's model", arguments(prompt=STRING))
async def test_sampling(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    if not declares(ctx, "sampling"):
        return failure("The client does not support sampling")
    question = sampling((params.arguments or {})["prompt"])
    reply = await ask(ctx, question, types.CreateMessageResult)
    return text(f"LLM response: {getattr(reply.content, 'text', '')}")


async def elicit(ctx: Context, question: types.ElicitRequest, label: str) -> Outcome:
    if not declares(ctx, "elicitation"):
        return failure("The client does not support elicitation")
    reply = await ask(ctx, question, types.ElicitResult)
    return text(f"{label}: action={reply.action}, content={json.dumps(reply.content or {})}")


@tool("Asks the user for a name and an address", arguments(message=STRING))
async def test_elicitation(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    question = form(
        (params.arguments or {})["message"],
        username={"type": "string", "description": "User's response"},
        email={"type": "string", "description": "User's email address"},
    )
    return await elicit(ctx, question, "User response")


@tool("Asks the user with a default for every kind of field")
async def test_elicitation_sep1034_defaults(
    ctx: Context, params: types.CallToolRequestParams
) -> Outcome:
    question = form(
        "Please review and update the form fields with defaults",
        required=False,
        name={"type": "string", "default": "John Doe"},
        age={"type": "integer", "default": 30},
        score={"type": "number", "default": 95.5},
        status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        verified={"type": "boolean", "default": True},
    )
    return await elicit(ctx, question, "Elicitation completed")


@tool("Asks the user with every kind of choice")
async def test_elicitation_sep1330_enums(
    ctx: Context, params: types.CallToolRequestParams
) -> Outcome:
    plain = ["option1", "option2", "option3"]
    titled = [
        {"const": "value1", "title": "First Option"},
        {"const": "value2", "title": "Second Option"},
        {"const": "value3", "title": "Third Option"},
    ]
    question = form(
        "Please select options from the enum fields",
        required=False,
        untitledSingle={"type": "string", "enum": plain},
        titledSingle={"type": "string", "oneOf": titled},
        legacyEnum={
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        untitledMulti={"type": "array", "items": {"type": "string", "enum": plain}},
        titledMulti={"type": "array", "items": {"anyOf": titled}},
    )
    return await elicit(ctx, question, "Elicitation completed")


# Changes of what is offered


@tool("Announces that the list of tools changed")
async def test_trigger_tool_change(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    if is_modern(ctx):
        await BUS.publish(ToolsListChanged())
    else:
        await ctx.session.send_tool_list_changed()
    return text("Announced a change of the tools")


@tool("Announces that the list of prompts changed")
async def test_trigger_prompt_change(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    if is_modern(ctx):
        await BUS.publish(PromptsListChanged())
    else:
        await ctx.session.send_prompt_list_changed()
    return text("Announced a change of the prompts")


# Schemas and demands


@tool(
    "Mirrors an argument in a header",
    {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
)
async def test_x_mcp_header(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    return text(f"region={(params.arguments or {}).get('region')}")


@tool("Refuses clients without sampling")
async def test_missing_capability(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    if not declares(ctx, "sampling"):
        raise MCPError(
            code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="This tool needs the sampling capability",
            data={"requiredCapabilities": {"sampling": {}}},
        )
    return text("The client supports sampling")


@tool(
    "Tool with JSON Schema 2020-12 features",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": STRING, "city": STRING},
            }
        },
        "properties": {
            "name": STRING,
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": STRING,
            "email": STRING,
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {
            "properties": {"contactMethod": {"const": "phone"}},
            "required": ["contactMethod"],
        },
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)
async def json_schema_2020_12_tool(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    return text("Accepted")
