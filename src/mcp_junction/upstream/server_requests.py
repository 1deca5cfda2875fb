"""Which requests of a server a client can answer: sampling, elicitation and roots.

A server on a link that many clients share was told the capabilities that Junction can relay;
whether one client has them is checked here. Passing the request on is done elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from mcp_junction.protocol import frames
from mcp_junction.protocol.versions import INVALID_PARAMS, METHOD_NOT_FOUND
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Outcome

_ELICIT: Final = "elicitation/create"
_NEEDED: Final = {
    "sampling/createMessage": "sampling",
    _ELICIT: "elicitation",
    "roots/list": "roots",
}
_FORM: Final = "form"
_MODES: Final = frozenset((_FORM, "url"))
RELAYED_CAPABILITIES: Final = frozenset(_NEEDED.values())
"""The capabilities of clients that servers are told."""


def askable_methods(capabilities: Mapping[str, Raw]) -> frozenset[str]:
    """The methods, and modes of elicitation, that a client with these capabilities can answer."""
    methods = {method for method, needed in _NEEDED.items() if needed in capabilities}
    if _ELICIT in methods:
        modes = _MODES.intersection(frames.object_members(capabilities["elicitation"]))
        methods |= modes or {_FORM}  # the only one before there were modes
    return frozenset(methods)


def question_refusal(method: str, params: Raw | bytes, can: frozenset[str]) -> Outcome | None:
    """The error for a request that the client cannot answer; None when it can."""
    if method not in _NEEDED or method not in can:
        return outcomes.failed(METHOD_NOT_FOUND, f"the client does not support {method}")
    if method == _ELICIT:
        mode = frames.text(frames.object_members(params).get("mode")) or _FORM
        if mode not in can:
            words = f"the client does not support elicitation by {mode[:20]}"
            return outcomes.failed(INVALID_PARAMS, words)
    return None
