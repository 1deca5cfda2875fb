"""The arguments of Junction's own tools, and the call that is wrapped in ``call_tool``."""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Raw

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import Address
from mcp_junction.catalog.items import TOOLS
from mcp_junction.catalog.own_tools import (
    CALL,
    LONGEST_QUERY,
    MOST_DESCRIBED,
    MOST_FOUND,
    USUALLY_FOUND,
)
from mcp_junction.catalog.view import View
from mcp_junction.errors import FrameError
from mcp_junction.protocol import frames

_OBJECT: Final = ord("{")
T = TypeVar("T")


class FindArguments(msgspec.Struct, forbid_unknown_fields=True):
    query: Annotated[str, Meta(min_length=1, max_length=LONGEST_QUERY)]
    limit: Annotated[int, Meta(ge=1, le=MOST_FOUND)] = USUALLY_FOUND


class DescribeArguments(msgspec.Struct, forbid_unknown_fields=True):
    names: Annotated[list[str], Meta(min_length=1, max_length=MOST_DESCRIBED)]


class CallArguments(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: Raw = Raw(b"{}")

    def __post_init__(self) -> None:
        if memoryview(self.arguments)[0] != _OBJECT:
            raise ValueError("arguments must be an object")


class WrongArguments(Exception):
    """The arguments do not fit the tool; its text is for the caller."""


def read_arguments(call: Call, kind: type[T]) -> T:
    """The arguments of a call. Raises WrongArguments."""
    raw = call.params.get("arguments") or Raw(b"{}")
    try:
        frames.unique_members(raw)  # a repeated member is ambiguous
        return msgspec.json.decode(raw, type=kind)
    except (FrameError, msgspec.MsgspecError) as error:
        raise WrongArguments(str(error)) from None


def unwrap_call_tool(call: Call) -> bool:
    """Turn a call of ``call_tool`` into the call that it wraps; return whether it was valid.

    From then on it is a call like any other: with the same policy, audit, deadline, questions and
    cancellation, under the name of the tool that is called.
    """
    if call.name != CALL:
        return False
    try:
        wrapped = read_arguments(call, CallArguments)
    except WrongArguments:
        return False
    call.address = Address(TOOLS, wrapped.name)
    call.params = {**call.params, "arguments": wrapped.arguments}
    return True


def name_of_tool(call: Call, view: View) -> str:
    """The name of the tool that a call is for in the end."""
    if call.name == CALL and call.name in view.own:
        try:
            return read_arguments(call, CallArguments).name
        except WrongArguments:
            pass
    return call.name
