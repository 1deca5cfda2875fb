"""``mcp-junction call``: call one tool, as a client would, and print its result."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from mcp_junction.cli.options import add_config_options, parser, read_config, set_up_logging
from mcp_junction.cli.runner import run_async
from mcp_junction.cli.waiting import settled_with_progress
from mcp_junction.config.load import Config
from mcp_junction.errors import UsageError


def run(argv: list[str]) -> int:
    options = parser(
        "mcp-junction call",
        "Start the servers of a config file and call one tool."
        "\nExit code 1 if the call failed or the tool says that it did.",
        'example:\n  mcp-junction call --config mcp.json clock:now \'{"timezone": "UTC"}\'\n',
    )
    add_config_options(options)
    options.add_argument("tool", metavar="NAME", help="the tool, in any spelling")
    options.add_argument(
        "arguments", metavar="JSON", nargs="?", default="{}", help="its arguments; - reads stdin"
    )
    options.add_argument("--json", action="store_true", help="print the whole result as JSON")
    given = options.parse_args(argv)
    set_up_logging(given)
    config = read_config(given)
    return run_async(_call(config, given.tool, read_arguments(given.arguments), as_json=given.json))


def read_arguments(text: str) -> bytes:
    if text == "-":
        text = sys.stdin.read()
    try:
        value = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"the arguments are not JSON: {where}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the arguments are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError('the arguments must be a JSON object, for example {"path": "notes.txt"}')
    return text.encode()


def _refuse(constant: str) -> Any:
    raise ValueError(f"there is no {constant}")


async def _call(config: Config, name: str, arguments: bytes, *, as_json: bool) -> int:
    from mcp_junction.app import Junction
    from mcp_junction.calls.call import tool_call
    from mcp_junction.upstream.outcome import Kind

    async with Junction(config) as junction:
        junction.greet()
        await settled_with_progress(junction)
        session = junction.open_session(lambda _: None)
        params = {"name": msgspec.Raw(b""), "arguments": msgspec.Raw(arguments)}
        call = tool_call(session, junction.snapshot, name, params)
        outcome = await junction.snapshot.handle(call)
    value = msgspec.json.decode(outcome.payload)
    if outcome.kind is not Kind.RESULT:
        print(f"mcp-junction: {outcome.message}", file=sys.stderr)
        if as_json:
            print(json.dumps({"error": value}, indent=2, ensure_ascii=False))
        return 1
    print(json.dumps(value, indent=2, ensure_ascii=False) if as_json else readable(value))
    return 1 if isinstance(value, dict) and value.get("isError") else 0


def readable(value: Any) -> str:
    """The text of a result that is only text; anything else as it is."""
    content = value.get("content") if isinstance(value, dict) else None
    if isinstance(content, list) and content and all(map(_is_text, content)):
        return "\n".join(str(block.get("text", "")) for block in content)
    return json.dumps(value, indent=2, ensure_ascii=False)


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text"
