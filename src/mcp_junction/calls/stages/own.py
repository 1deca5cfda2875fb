"""OwnTools: the stage that answers ``find_tools`` and ``describe_tools``, from the caller's view.

``call_tool`` comes here only when its arguments make no sense: otherwise ``resolve`` has made the
call that it asks for out of it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.methods import OWN
from mcp_junction.calls.own_arguments import (
    CallArguments,
    DescribeArguments,
    FindArguments,
    WrongArguments,
    read_arguments,
)
from mcp_junction.calls.tool_search import ToolQuery, ToolSearch
from mcp_junction.catalog.items import TOOLS
from mcp_junction.catalog.own_tools import DESCRIBE, FIND
from mcp_junction.catalog.view import View
from mcp_junction.protocol import encode
from mcp_junction.protocol.names import Pair
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Outcome

_SHOWN: Final = 300
"""Characters of a description in a list of what was found."""
_QUOTED: Final = 200


class _Described(msgspec.Struct):
    description: str = ""


class OwnTools:
    """Answers the calls of Junction's own tools; passes on all others."""

    def __init__(self, search: ToolSearch) -> None:
        self._search = search

    def __call__(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        return following(call) if call.address.kind is not OWN else self._answer(call)

    async def _answer(self, call: Call) -> Outcome:
        caller = call.caller
        view = call.snapshot.catalog.show(caller.spelling, TOOLS, caller.scope)
        try:
            if call.name == FIND:
                return await self._find(call, view, read_arguments(call, FindArguments))
            if call.name == DESCRIBE:
                return _describe(view, read_arguments(call, DescribeArguments))
            read_arguments(call, CallArguments)
            raise AssertionError("call_tool with good arguments is unwrapped in resolve")
        except WrongArguments as error:
            text = f"{call.name}: {error}"
            refusal = {"content": [{"type": "text", "text": text}], "isError": True}
            return outcomes.result(encode.dumps(refusal))

    async def _find(self, call: Call, view: View, wanted: FindArguments) -> Outcome:
        found = await self._search(ToolQuery(wanted.query, wanted.limit, with_own=False), view)
        if call.ended_by is not None:
            return call.ended_by
        value: dict[str, Any] = {"tools": [_summarize(view, hit.pair) for hit in found.hits]}
        if not found.hits:
            value["hint"] = "nothing fits; try other words, or fewer"
        return _structured(value)


def _describe(view: View, wanted: DescribeArguments) -> Outcome:
    tools: list[Raw] = []
    unknown: list[dict[str, Any]] = []
    for name in dict.fromkeys(wanted.names):
        route = view.find(name)
        if route is not None:
            tools.append(Raw(view.describe(route.pair)))
        else:
            short = name[:_QUOTED]
            unknown.append({"name": short, "did_you_mean": view.nearest(short)})
    value: dict[str, Any] = {"tools": tools}
    if unknown:
        value["unknown"] = unknown
    return _structured(value, is_error=not tools)


def _structured(value: dict[str, Any], *, is_error: bool = False) -> Outcome:
    text = encode.dumps(value)
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": text.decode("utf-8", "replace")}],
        "structuredContent": Raw(text),
    }
    if is_error:
        result["isError"] = True
    return outcomes.result(encode.dumps(result))


def _summarize(view: View, pair: Pair) -> dict[str, str]:
    try:
        tool = msgspec.json.decode(view.describe(pair), type=_Described)
        text = tool.description.strip()
    except msgspec.MsgspecError:  # no text: it has none that could be shown
        text = ""
    short = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return {"name": view.name_of(pair) or "", "server": pair.server, "description": short}
