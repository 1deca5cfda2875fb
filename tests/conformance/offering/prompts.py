"""The prompts, and the completion of their arguments."""

from collections.abc import Callable

import mcp_types as types
from mcp.shared.exceptions import MCPError

from .answers import STRING, Context, embedded, form, image, needs, reply_to

Arguments = dict[str, str]
Messages = list[types.PromptMessage]


def user(content: types.ContentBlock) -> types.PromptMessage:
    return types.PromptMessage(role="user", content=content)


def said(message: str) -> types.PromptMessage:
    return user(types.TextContent(text=message))


def simple(arguments: Arguments) -> Messages:
    return [said("This is a simple prompt for testing.")]


def with_arguments(arguments: Arguments) -> Messages:
    given = f"arg1='{arguments.get('arg1')}', arg2='{arguments.get('arg2')}'"
    return [said(f"Prompt with arguments: {given}")]


def with_embedded_resource(arguments: Arguments) -> Messages:
    uri = arguments.get("resourceUri", "test://example-resource")
    return [
        user(embedded(uri, "text/plain", "Embedded resource content for testing.")),
        said("Please process the embedded resource above."),
    ]


def with_image(arguments: Arguments) -> Messages:
    return [user(image()), said("Please analyze the image above.")]


ASKING = "test_input_required_result_prompt"
PROMPTS: dict[str, tuple[list[str], Callable[[Arguments], Messages]]] = {
    "test_simple_prompt": ([], simple),
    "test_prompt_with_arguments": (["arg1", "arg2"], with_arguments),
    "test_prompt_with_embedded_resource": (["resourceUri"], with_embedded_resource),
    "test_prompt_with_image": ([], with_image),
}


async def list_prompts(
    ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListPromptsResult:
    listed = [
        types.Prompt(
            name=name,
            description=f"The prompt {name}",
            arguments=[
                types.PromptArgument(name=argument, description=argument, required=True)
                for argument in arguments
            ],
        )
        for name, (arguments, _) in PROMPTS.items()
    ]
    listed.append(types.Prompt(name=ASKING, description="Asks the user before it answers"))
    return types.ListPromptsResult(prompts=listed)


async def get_prompt(
    ctx: Context, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    if params.name == ASKING:
        return _ask_for_context(params)
    if params.name not in PROMPTS:
        raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown prompt: {params.name}")
    _, messages = PROMPTS[params.name]
    return types.GetPromptResult(messages=messages(params.arguments or {}))


def _ask_for_context(
    params: types.GetPromptRequestParams,
) -> types.GetPromptResult | types.InputRequiredResult:
    reply = reply_to("user_context", params, types.ElicitResult)
    if reply is None:
        return needs(user_context=form("What context should the prompt use?", context=STRING))
    context = (reply.content or {}).get("context")
    return types.GetPromptResult(messages=[said(f"Context: {context}")])


async def complete(ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    """Values for `arg1` that begin with what was typed; nothing for anything else."""
    known = ["paris", "park", "party"] if params.argument.name == "arg1" else []
    values = [value for value in known if value.startswith(params.argument.value)]
    completion = types.Completion(values=values, total=len(values), has_more=False)
    return types.CompleteResult(completion=completion)
