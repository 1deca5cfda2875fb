"""OwnTools: what Junction's own tools do, where an endpoint lists them.

``find_tools`` and ``describe_tools`` are answered here, from the caller's own view. ``call_tool``
is no call of its own: it turns into the call that it asks for, which then takes the way of every
other, with the same audit, deadline, questions and cancellation. So there is one row in the audit,
and it names the tool that was called.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Raw

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import OWN, Address
from mcp_junction.calls.snapshot import Handler
from mcp_junction.calls.stages.resolve import routed
from mcp_junction.calls.tool_search import ToolSearch
from mcp_junction.catalog.kinds import TOOLS
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
from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.envelope import ResultEnvelope
from mcp_junction.protocol.names import Pair
from mcp_junction.protocol.versions import Era
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Outcome

_SHOWN: Final = 300
"""Characters of a description in a list of what was found."""
_QUOTED: Final = 200
_OBJECT: Final = ord("{")
T = TypeVar("T")


class _Find(msgspec.Struct, forbid_unknown_fields=True):
    query: Annotated[str, Meta(min_length=1, max_length=LONGEST_QUERY)]
    limit: Annotated[int, Meta(ge=1, le=MOST_FOUND)] = USUALLY_FOUND


class _Describe(msgspec.Struct, forbid_unknown_fields=True):
    names: Annotated[list[str], Meta(min_length=1, max_length=MOST_DESCRIBED)]


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: Raw = Raw(b"{}")


class _Said(msgspec.Struct):
    description: str = ""


class _Wrong(Exception):
    """The arguments are not what the tool takes; its words are for whoever called."""


class OwnTools:
    """Answers the calls of a view's own tools."""

    def __init__(self, finding: ToolSearch, name: str, version: str) -> None:
        self._finding = finding
        self._dress = ResultEnvelope(encode.dumps({"name": name, "version": version}))

    def __call__(self, call: Call, view: View, following: Handler) -> Awaitable[Outcome]:
        """What becomes of a call whose name is one of ``view.own``."""
        name = call.name
        call.address = Address(OWN, name)
        try:
            if name == FIND:
                return self._find(call, _shown(call), _read(call, _Find))
            if name == DESCRIBE:
                return self._describe(call, _shown(call), _read(call, _Describe))
            return self._call(call, view, following, _read(call, _Call))
        except _Wrong as error:
            return self._refused(call, f"{name}: {error}")

    def _call(self, call: Call, view: View, following: Handler, asked: _Call) -> Awaitable[Outcome]:
        if memoryview(asked.arguments)[0] != _OBJECT:
            raise _Wrong("arguments must be an object")
        call.address = Address(TOOLS, asked.name)
        call.params["arguments"] = asked.arguments
        return routed(call, view, following)

    async def _find(self, call: Call, view: View, asked: _Find) -> Outcome:
        hits = await self._finding(asked.query, asked.limit, view.admits)
        if call.ended_by is not None:
            return call.ended_by
        found = [_found(view, hit.pair) for hit in hits]
        value: dict[str, Any] = {"tools": found}
        if not found:
            value["hint"] = f"nothing fits; try other words, or fewer ({FIND} knows no synonyms)"
        return self._answer(call, value)

    async def _describe(self, call: Call, view: View, asked: _Describe) -> Outcome:
        found: list[Raw] = []
        unknown: list[dict[str, Any]] = []
        for name in dict.fromkeys(asked.names):
            route = view.find(name)
            if route is not None:
                found.append(Raw(view.describe(route.pair)))
            else:
                short = name[:_QUOTED]
                unknown.append({"name": short, "did_you_mean": view.nearest(short)})
        value: dict[str, Any] = {"tools": found}
        if unknown:
            value["unknown"] = unknown
        return self._answer(call, value, is_error=not found)

    # -- answers

    async def _refused(self, call: Call, words: str) -> Outcome:
        said = {"content": [{"type": "text", "text": words}], "isError": True}
        return self._dressed(call, encode.dumps(said))

    def _answer(self, call: Call, value: dict[str, Any], *, is_error: bool = False) -> Outcome:
        text = encode.dumps(value)
        said: dict[str, Any] = {
            "content": [{"type": "text", "text": text.decode("utf-8", "replace")}],
            "structuredContent": Raw(text),
        }
        if is_error:
            said["isError"] = True
        return self._dressed(call, encode.dumps(said))

    def _dressed(self, call: Call, payload: bytes) -> Outcome:
        if call.caller.era is Era.STATELESS:
            payload = envelope.to_stateless_result(payload, self._dress)
        return outcomes.result(payload)


def _shown(call: Call) -> View:
    """The tools whose names the caller is about to be told."""
    caller = call.caller
    return call.snapshot.catalog.show(caller.spelling, TOOLS, caller.scope)


def meant(call: Call, view: View) -> str:
    """The name of the tool that a call is for in the end."""
    if call.name == CALL and call.name in view.own:
        try:
            return _read(call, _Call).name
        except _Wrong:
            pass
    return call.name


def _read(call: Call, kind: type[T]) -> T:
    """The arguments of a call. Raises _Wrong."""
    raw = call.params.get("arguments") or Raw(b"{}")
    try:
        frames.unique_members(raw)  # what is said twice may mean two things
        return msgspec.json.decode(raw, type=kind)
    except (FrameError, msgspec.MsgspecError) as error:
        raise _Wrong(str(error)) from None


def _found(view: View, pair: Pair) -> dict[str, str]:
    try:
        said = msgspec.json.decode(view.describe(pair), type=_Said).description.strip()
    except msgspec.MsgspecError:  # no text: it has none that could be shown
        said = ""
    short = said if len(said) <= _SHOWN else said[: _SHOWN - 1] + "…"
    return {"name": view.name_of(pair) or "", "server": pair.server, "description": short}
