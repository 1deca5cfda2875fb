"""LargeResults: gives a large result as its beginning, its shape and a link to the whole.

The whole is kept in this process for an hour and read with ``resources/read``, page by page, by the
caller who got it and as long as it may use the tool. Structured content is kept whole or left out
whole, and kept where the tool promises it. Where no budget is set, this is not on the path.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.events import CALL_TOOL
from mcp_junction.calls.methods import READ
from mcp_junction.calls.stages.resolve import refuse_unknown
from mcp_junction.catalog.items import TOOLS
from mcp_junction.catalog.own_tools import TOKEN_BYTES
from mcp_junction.errors import FrameError
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.names import Pair
from mcp_junction.resilience.clock import Clock
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import RESULT, Outcome

SCHEME: Final = "junction-result:"
_URI: Final = re.compile(rf"{SCHEME}([\w-]{{16,64}})(?:\?page=([1-9]\d{{0,8}}))?\Z")
KEPT_SECONDS: Final = 3600.0
_MOST_CHARACTERS: Final = 64 * 1024 * 1024
"""Characters of all results that are kept; beyond that, the oldest go first, never the latest."""
_SHAPE_KEYS: Final = 20


class LinkedResult(msgspec.Struct, frozen=True):
    """A whole result, and who may read it."""

    principal: Principal
    endpoint: str
    pair: Pair
    text: str
    mime: str
    page: int
    """Characters of a page."""
    kept_at: float

    @property
    def pages(self) -> int:
        return -(-len(self.text) // self.page)


class LargeResults:
    """The stage; ``tokens`` is the budget where an endpoint has none of its own, 0 for none."""

    def __init__(self, clock: Clock, tokens: int) -> None:
        self._clock = clock
        self._tokens = tokens
        self._kept: dict[str, LinkedResult] = {}
        self._size = 0

    def __call__(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        if call.method == READ and call.name.startswith(SCHEME):
            return self._read(call)
        if call.method != CALL_TOOL or not call.caller.takes_links:
            return following(call)
        own = call.caller.scope.endpoint.result_tokens
        budget = TOKEN_BYTES * (self._tokens if own is None else own)
        return self._shorten(call, following, budget) if budget else following(call)

    # -- giving

    async def _shorten(self, call: Call, following: Handler, budget: int) -> Outcome:
        outcome = await following(call)
        route = call.route
        if outcome.kind is not RESULT or len(outcome.payload) <= budget or route is None:
            return outcome
        try:
            members = frames.members(outcome.payload)
            content = msgspec.json.decode(members["content"], type=list[dict[str, Any]])
        except (FrameError, LookupError, msgspec.MsgspecError):
            return outcome  # it is not what results are: not ours to change
        structured = members.get("structuredContent")
        text, mime = _read_text(content, outcome.payload)
        keeps = structured is not None and (
            len(structured) <= budget
            or (route.item is not None and "outputSchema" in route.item.members)
        )
        uri = self._keep(call, route.pair, text, mime, budget)
        beginning = text[: budget // TOKEN_BYTES]
        given: dict[str, Any] = {**members, "content": _describe(uri, text, mime, beginning)}
        if not keeps:
            given.pop("structuredContent", None)
        return msgspec.structs.replace(outcome, payload=encode.dumps(given))

    def _keep(self, call: Call, pair: Pair, text: str, mime: str, page: int) -> str:
        caller, now = call.caller, self._clock.now()
        name = secrets.token_urlsafe(24)
        kept = LinkedResult(caller.principal, caller.endpoint.name, pair, text, mime, page, now)
        self._kept[name] = kept
        self._size += len(text)
        while len(self._kept) > 1:  # the latest stays, however large it is: its link is given
            oldest = next(iter(self._kept))
            if self._size <= _MOST_CHARACTERS and not self._is_over(self._kept[oldest]):
                break
            self._size -= len(self._kept.pop(oldest).text)
        return f"{SCHEME}{name}"

    def _is_over(self, kept: LinkedResult) -> bool:
        return self._clock.now() - kept.kept_at >= KEPT_SECONDS

    # -- reading

    async def _read(self, call: Call) -> Outcome:
        found = _URI.match(call.name)
        kept = self._kept.get(found[1]) if found else None
        if found is None or kept is None or not self._may_read(call, kept):
            return await refuse_unknown(call)
        number = int(found[2] or 1)
        if number > kept.pages:
            return await refuse_unknown(call)
        start = (number - 1) * kept.page
        meta: dict[str, Any] = {"junction/page": number, "junction/pages": kept.pages}
        if number < kept.pages:
            meta["junction/next"] = f"{SCHEME}{found[1]}?page={number + 1}"
        text = kept.text[start : start + kept.page]
        contents = [{"uri": call.name, "mimeType": kept.mime, "text": text, "_meta": meta}]
        return outcomes.result(encode.dumps({"contents": contents}))

    def _may_read(self, call: Call, kept: LinkedResult) -> bool:
        caller = call.caller
        return (
            not self._is_over(kept)
            and kept.principal.is_same(caller.principal)
            and kept.endpoint == caller.endpoint.name
            and caller.scope.admits(TOOLS, kept.pair)
        )


def _read_text(content: list[dict[str, Any]], payload: Raw | bytes) -> tuple[str, str]:
    """Return the whole of a result to read: its text if it is all text, else all of it as JSON."""
    texts = [part.get("text") for part in content if part.get("type") == "text"]
    if texts and len(texts) == len(content) and all(isinstance(text, str) for text in texts):
        whole = "\n".join(texts)  # type: ignore[arg-type]
        return whole, "application/json" if whole[:1] in ("{", "[") else "text/plain"
    return bytes(payload).decode("utf-8", "replace"), "application/json"


def _describe(uri: str, text: str, mime: str, beginning: str) -> list[dict[str, Any]]:
    """Make the content that is given instead: the beginning, the shape and the link."""
    size = len(text.encode(errors="replace"))
    words = (
        f"{beginning}\n… [the first {len(beginning):,} of {len(text):,} characters;"
        f" {_shape(text)}; read the rest as the resource {uri}, page by page: ?page=2]"
    )
    link = {
        "type": "resource_link",
        "uri": uri,
        "name": "the whole result",
        "description": "Can be read for an hour, page by page (?page=2 …).",
        "mimeType": mime,
        "size": size,
    }
    return [{"type": "text", "text": words}, link]


def _shape(text: str) -> str:
    """Say what a text is made of: keys and counts of JSON, or lines."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return f"{text.count(chr(10)) + 1:,} lines"
    if isinstance(value, list):
        keys = _keys(value[0]) if value and isinstance(value[0], dict) else ""
        return f"a JSON array of {len(value):,} items{keys and f' with the keys {keys}'}"
    if isinstance(value, dict):
        counts = [f"{k} ({len(v):,} items)" for k, v in value.items() if isinstance(v, list | dict)]
        counted = f"; {', '.join(counts[:_SHAPE_KEYS])}" if counts else ""
        return f"a JSON object with the keys {_keys(value)}{counted}"
    return f"a JSON {type(value).__name__}"


def _keys(value: dict[str, Any]) -> str:
    names = list(value)
    more = f" and {len(names) - _SHAPE_KEYS} more" if len(names) > _SHAPE_KEYS else ""
    return ", ".join(name[:60] for name in names[:_SHAPE_KEYS]) + more
