"""``mcp-junction call``: calls one tool of a config file's servers and prints its result."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from mcp_junction.cli.environment import variables
from mcp_junction.cli.options import add_config_options, make_parser, read_config, set_up_logging
from mcp_junction.cli.printing import wait_with_progress
from mcp_junction.cli.runner import run_async
from mcp_junction.config.load import Config
from mcp_junction.errors import FrameError, UsageError
from mcp_junction.protocol import frames, requests

if TYPE_CHECKING:
    from mcp_junction.upstream.outcome import Outcome


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction call",
        "Start the servers of a config file and call one tool."
        "\nExit code 1 if the call failed or its result is an error.",
        'example:\n  mcp-junction call --config mcp.json clock:now \'{"timezone": "UTC"}\'\n',
    )
    add_config_options(parser)
    parser.add_argument("tool", metavar="NAME", help="the tool's name, with any separator")
    parser.add_argument(
        "arguments", metavar="JSON", nargs="?", default="{}", help="its arguments; - reads stdin"
    )
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON")
    args = parser.parse_args(argv)
    set_up_logging(args)
    config = read_config(args, lenient=True)
    return run_async(_call(config, args.tool, read_arguments(args.arguments), as_json=args.json))


def read_arguments(text: str) -> bytes:
    """Read the arguments, as they are written, and check that they are a JSON object."""
    data = sys.stdin.buffer.read() if text == "-" else os.fsencode(text)
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"the arguments are not UTF-8: byte {error.start}") from None
    try:
        value = requests.check_json(data)
    except FrameError as error:
        raise UsageError(_describe_fault(text, error)) from None
    if not value.startswith(b"{"):
        raise UsageError('the arguments must be a JSON object, for example {"path": "notes.txt"}')
    return value


def _describe_fault(text: str, refused: FrameError) -> str:
    """Describe what is wrong with a text, by line and column."""
    try:
        value = json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "the arguments: an escape such as \\ud800 is half a character; write both halves"
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        return f"the arguments are not JSON: {where}: {error.msg}"
    except ValueError as error:
        return f"the arguments are not JSON: {error}"
    except RecursionError:
        pass
    return f"the arguments: {refused}"


def _refuse(constant: str) -> Any:
    raise ValueError(f"there is no {constant}")


async def _call(config: Config, name: str, arguments: bytes, *, as_json: bool) -> int:
    from mcp_junction.app import Junction
    from mcp_junction.calls.call import tool_call
    from mcp_junction.upstream.outcome import OutcomeKind

    async with Junction(config.once(), environ=variables()) as junction:
        junction.greet()
        session = junction.open_session(lambda _: None)
        params = {"name": msgspec.Raw(b""), "arguments": msgspec.Raw(arguments)}
        call = tool_call(session, junction.snapshot, name, params)
        await wait_with_progress(
            junction, junction.wait_for_offer(call)
        )  # of the others nothing is wanted
        call.snapshot = junction.snapshot
        outcome = await junction.snapshot.handle(call)
    payload = frames.octets(outcome.payload)
    if outcome.kind is not OutcomeKind.RESULT:
        print(_describe_error(outcome), file=sys.stderr)
        if as_json:
            print(_format_json(b'{"error":%b}' % payload))
        return 1
    print(_format_json(payload) if as_json else _format_payload(payload))
    return 1 if _is_error(payload) else 0


def _describe_error(error: Outcome) -> str:
    """Describe an error with its code and data."""
    data = frames.octets(frames.members(error.payload).get("data", b""))
    more = ""
    if data not in (b"", b"null"):
        more = f"\n  {str(msgspec.json.format(data, indent=0), 'utf-8')}"
    return f"mcp-junction: {error.message} (code {error.code}){more}"


def _format_json(payload: bytes) -> str:
    try:
        return json.dumps(msgspec.json.decode(payload), indent=2, ensure_ascii=False)
    except msgspec.DecodeError:  # it holds what Python cannot, like 1e400
        return str(msgspec.json.format(payload, indent=2), "utf-8")


def _format_payload(payload: bytes) -> str:
    try:
        return format_result(msgspec.json.decode(payload))
    except msgspec.DecodeError:
        return _format_json(payload)


def _is_error(payload: bytes) -> bool:
    return (
        payload.startswith(b"{") and bytes(frames.members(payload).get("isError", b"")) == b"true"
    )


def format_result(value: Any) -> str:
    """Return the text of a result that is only text; any other as JSON."""
    content = value.get("content") if isinstance(value, dict) else None
    if (
        isinstance(content, list)
        and content
        and all(isinstance(block, dict) and block.get("type") == "text" for block in content)
    ):
        return "\n".join(str(block.get("text", "")) for block in content)
    return json.dumps(value, indent=2, ensure_ascii=False)
