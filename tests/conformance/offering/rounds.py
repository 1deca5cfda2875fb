"""Tools of 2026-07-28 that answer with questions and finish when the client calls again.

Nothing is kept between the rounds: what a tool must remember travels in `requestState`, which the
server seals (see `server.py`), so a tool sees only state that it gave out itself.
"""

import json

import mcp_types as types

from .answers import (
    BOOLEAN,
    STRING,
    Context,
    declares,
    form,
    needs,
    reply_to,
    roots,
    sampling,
    text,
)
from .table import Outcome, Table

TOOLS = Table()
tool = TOOLS.add


@tool("Asks for a name")
async def test_input_required_result_elicitation(
    ctx: Context, params: types.CallToolRequestParams
) -> Outcome:
    reply = reply_to("user_name", params, types.ElicitResult)
    if reply is None:
        return needs(user_name=form("What is your name?", name=STRING))
    return text(f"Hello, {(reply.content or {}).get('name')}!")


@tool("Asks the client's model")
async def test_input_required_result_sampling(
    ctx: Context, params: types.CallToolRequestParams
) -> Outcome:
    reply = reply_to("capital_question", params, types.CreateMessageResult)
    if reply is None:
        return needs(capital_question=sampling("What is the capital of France?"))
    return text(f"The model said: {getattr(reply.content, 'text', '')}")


@tool("Asks for the roots")
async def test_input_required_result_list_roots(
    ctx: Context, params: types.CallToolRequestParams
) -> Outcome:
    reply = reply_to("client_roots", params, types.ListRootsResult)
    if reply is None:
        return needs(client_roots=roots())
    return text(f"Roots: {json.dumps([str(root.uri) for root in reply.roots])}")


@tool("Asks, and wants its state back")
async def test_input_required_result_request_state(
    ctx: Context, params: types.CallToolRequestParams
) -> Outcome:
    reply = reply_to("confirm", params, types.ElicitResult)
    if reply is None or params.request_state != "asked":
        return needs("asked", confirm=form("Please confirm", ok=BOOLEAN))
    return text("state-ok")


@tool("Asks three things at once")
async def test_input_required_result_multiple_inputs(
    ctx: Context, params: types.CallToolRequestParams
) -> Outcome:
    questions: types.InputRequests = {
        "user_name": form("What is your name?", name=STRING),
        "greeting": sampling("Generate a greeting"),
        "client_roots": roots(),
    }
    if questions.keys() - (params.input_responses or {}).keys():
        return needs("asked", **questions)
    return text("All inputs received")


@tool("Asks in two rounds")
async def test_input_required_result_multi_round(
    ctx: Context, params: types.CallToolRequestParams
) -> Outcome:
    state = params.request_state
    if state == "step 1" and reply_to("step1", params, types.ElicitResult):
        return needs("step 2", step2=form("Step 2: What is your favorite color?", color=STRING))
    if state == "step 2" and reply_to("step2", params, types.ElicitResult):
        return text("Both steps done")
    return needs("step 1", step1=form("Step 1: What is your name?", name=STRING))


@tool("Gives out state that must come back as it was")
async def test_input_required_result_tampered_state(
    ctx: Context, params: types.CallToolRequestParams
) -> Outcome:
    if params.request_state is None:
        return needs("asked", confirm=form("Please confirm", ok=BOOLEAN))
    return text("state-ok")


@tool("Asks only what the client can answer")
async def test_input_required_result_capabilities(
    ctx: Context, params: types.CallToolRequestParams
) -> Outcome:
    questions: types.InputRequests = {}
    if declares(ctx, "sampling"):
        questions["sample"] = sampling("Say hello")
    if declares(ctx, "elicitation"):
        questions["ask"] = form("What is your name?", name=STRING)
    if questions.keys() <= (params.input_responses or {}).keys():
        return text("Nothing left to ask")
    return needs("asked", **questions)


@tool("Reports progress, then asks")
async def test_streaming_elicitation(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    await ctx.session.report_progress(1, 2, "About to ask")
    if reply_to("ask", params, types.ElicitResult) is None:
        return needs(ask=form("What is your name?", name=STRING))
    return text("Thank you")
