"""What a server may ask a client, and whether a client can be asked it.

A link that many clients share was told what Junction can relay; each client has said what it can be
asked itself. Putting the question to it is done elsewhere.
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
"""The capabilities of clients that servers are told of."""


def askable_methods(capabilities: Mapping[str, Raw]) -> frozenset[str]:
    """What a client with these capabilities can be asked: methods, and modes of eliciting."""
    found = {method for method, needed in _NEEDED.items() if needed in capabilities}
    if _ELICIT in found:
        modes = _MODES.intersection(frames.object_members(capabilities["elicitation"]))
        found |= modes or {_FORM}  # all there was before there were modes
    return frozenset(found)


def question_refusal(method: str, params: Raw | bytes, can: frozenset[str]) -> Outcome | None:
    """The answer to a server that asks what the client cannot be asked; None where it can."""
    if method not in _NEEDED or method not in can:
        return outcomes.failed(METHOD_NOT_FOUND, f"the client does not support {method}")
    if method == _ELICIT:
        mode = frames.text(frames.object_members(params).get("mode")) or _FORM
        if mode not in can:
            words = f"the client does not support elicitation by {mode[:20]}"
            return outcomes.failed(INVALID_PARAMS, words)
    return None
