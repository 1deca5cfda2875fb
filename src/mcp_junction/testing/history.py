"""Checks what callers saw of their calls against what the ledger recorded.

The rules (R-ANSWER, R-RETRY): each call has exactly one terminal answer; a tool that may not be
repeated ran at most once for it; ``not_sent`` means it did not run; a result, the server's own
error and ``executed`` mean that it did. ``unknown`` may be either.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class Ledger:
    """Reads the file of a ledger server; a last line that a crash cut off is skipped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self, event: str | None = None) -> list[Json]:
        """Read the entries, in order; all of them, or those of one event."""
        if not self.path.exists():
            return []
        found = [json.loads(line) for line in self.path.read_bytes().split(b"\n")[:-1]]
        return [entry for entry in found if event in (None, entry["event"])]

    def runs(self) -> Counter[str]:
        """Count how often each nonce was run."""
        return Counter(str(entry["nonce"]) for entry in self.entries("run"))


@dataclass(slots=True)
class Seen:
    """One call, as its caller saw it."""

    nonce: str
    answers: list[Json] = field(default_factory=list)
    cancelled: bool = False


def verdict(answer: Json) -> str:
    """Classify an answer: result, refused (the server's own error) or its ``delivery``."""
    if "error" not in answer:
        return "result"
    data = answer["error"].get("data")
    delivery = data.get("delivery") if isinstance(data, dict) else None
    return str(delivery) if delivery is not None else "refused"


def tally(calls: Iterable[Seen]) -> Counter[str]:
    """Count how calls ended."""
    return Counter(verdict(answer) for call in calls for answer in call.answers)


def check(calls: Iterable[Seen], ledger: Ledger, *, repeatable: bool = False) -> list[str]:
    """Return every breach of the rules, in words."""
    runs = ledger.runs()
    breaches: list[str] = []
    known = set()
    for call in calls:
        known.add(call.nonce)
        breaches += [f"{call.nonce}: {what}" for what in _check_call(call, runs[call.nonce])]
        if runs[call.nonce] > 1 and not repeatable:
            breaches.append(f"{call.nonce}: ran {runs[call.nonce]} times")
    breaches += [f"{nonce}: ran, and nobody asked for it" for nonce in runs.keys() - known]
    return breaches


def _check_call(call: Seen, runs: int) -> Iterable[str]:
    if len(call.answers) != 1 and not (call.cancelled and not call.answers):
        yield f"{len(call.answers)} answers"
    for answer in call.answers:
        ending = verdict(answer)
        if ending == "not_sent" and runs:
            yield "was said not to be sent, and ran"
        if ending in ("result", "executed", "refused") and not runs:
            yield f"ended as {ending}, and did not run"
        if ending == "result" and _nonce(answer) != call.nonce:
            yield f"got the answer to {_nonce(answer)!r}"


def _nonce(answer: Json) -> str | None:
    structured = answer["result"].get("structuredContent") or {}
    nonce = structured.get("nonce")
    return str(nonce) if nonce is not None else None
