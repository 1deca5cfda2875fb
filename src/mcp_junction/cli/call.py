"""``mcp-junction call``: calls one tool of a config file's servers and prints its result."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import msgspec

from mcp_junction.cli.environment import variables
from mcp_junction.cli.options import (
    add_config_options,
    make_parser,
    option,
    read_config,
    set_up_logging,
)
from mcp_junction.cli.printing import format_result, wait_with_progress
from mcp_junction.cli.runner import run_async
from mcp_junction.cli.values import read_arguments
from mcp_junction.config.load import Config
from mcp_junction.protocol import frames

if TYPE_CHECKING:
    from mcp_junction.upstream.outcome import Outcome


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction call",
        "Start the servers of a config file and call one tool."
        "\nExit code 1 if the call failed or its result is an error.",
        'example:\n  mcp-junction call --config mcp.json clock:now \'{"timezone": "UTC"}\'\n',
        add_config_options,
        option("tool", metavar="NAME", help="the tool's name, with any separator"),
        option(
            "arguments",
            metavar="JSON",
            nargs="?",
            default="{}",
            help="its arguments; - reads stdin",
        ),
        option("--json", action="store_true", help="print the whole result as JSON"),
    )
    args = parser.parse_args(argv)
    set_up_logging(args)
    config = read_config(args, lenient=True)
    return run_async(_call(config, args.tool, read_arguments(args.arguments), as_json=args.json))


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
