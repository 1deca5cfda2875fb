"""OwnTools: the stage that answers ``find_tools`` and ``describe_tools``, from the caller's view.

``call_tool`` comes here only when its arguments make no sense: otherwise ``resolve`` has made the
call that it asks for out of it (``unwrap_call_tool``).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Raw

from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.methods import OWN, Address
from mcp_junction.calls.tool_search import ToolQuery, ToolSearch
from mcp_junction.catalog.items import TOOLS
from mcp_junction.catalog.own_tools import (
    CALL,
    DESCRIBE,
    FIND,
    LONGEST_QUERY,
    MOST_DESCRIBED,
    MOST_FOUND,
    USUALLY_FOUND,
)
from mcp_junction.catalog.view import View
from mcp_junction.errors import FrameError
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.names import Pair
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Outcome

_SHOWN: Final = 300
"""Characters of a description in a list of what was found."""
_QUOTED: Final = 200
_OBJECT: Final = ord("{")
T = TypeVar("T")


class _FindArguments(msgspec.Struct, forbid_unknown_fields=True):
    query: Annotated[str, Meta(min_length=1, max_length=LONGEST_QUERY)]
    limit: Annotated[int, Meta(ge=1, le=MOST_FOUND)] = USUALLY_FOUND


class _DescribeArguments(msgspec.Struct, forbid_unknown_fields=True):
    names: Annotated[list[str], Meta(min_length=1, max_length=MOST_DESCRIBED)]


class _CallArguments(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: Raw = Raw(b"{}")

    def __post_init__(self) -> None:
        if memoryview(self.arguments)[0] != _OBJECT:
            raise ValueError("arguments must be an object")


class _WrongArguments(Exception):
    """The arguments do not fit the tool; its text is for the caller."""


def _read_arguments(call: Call, kind: type[T]) -> T:
    """The arguments of a call. Raises _WrongArguments."""
    raw = call.params.get("arguments") or Raw(b"{}")
    try:
        frames.unique_members(raw)  # a repeated member is ambiguous
        return msgspec.json.decode(raw, type=kind)
    except (FrameError, msgspec.MsgspecError) as error:
        raise _WrongArguments(str(error)) from None


def unwrap_call_tool(call: Call) -> bool:
    """Turn a call of ``call_tool`` into the call that it wraps; return whether it was valid.

    From then on it is a call like any other: with the same policy, audit, deadline, questions and
    cancellation, under the name of the tool that is called.
    """
    if call.name != CALL:
        return False
    try:
        wrapped = _read_arguments(call, _CallArguments)
    except _WrongArguments:
        return False
    call.address = Address(TOOLS, wrapped.name)
    call.params = {**call.params, "arguments": wrapped.arguments}
    return True


def name_of_tool(call: Call, view: View) -> str:
    """The name of the tool that a call is for in the end."""
    if call.name == CALL and call.name in view.own:
        try:
            return _read_arguments(call, _CallArguments).name
        except _WrongArguments:
            pass
    return call.name


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
                return await self._find(call, view, _read_arguments(call, _FindArguments))
            if call.name == DESCRIBE:
                return _describe(view, _read_arguments(call, _DescribeArguments))
            _read_arguments(call, _CallArguments)
            raise AssertionError("call_tool with good arguments is unwrapped in resolve")
        except _WrongArguments as error:
            text = f"{call.name}: {error}"
            refusal = {"content": [{"type": "text", "text": text}], "isError": True}
            return outcomes.result(encode.dumps(refusal))

    async def _find(self, call: Call, view: View, wanted: _FindArguments) -> Outcome:
        found = await self._search(ToolQuery(wanted.query, wanted.limit, with_own=False), view)
        if call.ended_by is not None:
            return call.ended_by
        value: dict[str, Any] = {"tools": [_summarize(view, hit.pair) for hit in found.hits]}
        if not found.hits:
            value["hint"] = "nothing fits; try other words, or fewer"
        return _structured(value)


def _describe(view: View, wanted: _DescribeArguments) -> Outcome:
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
