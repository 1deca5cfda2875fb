"""Validate: checks the arguments of a tool call against the tool's schema, before they are sent.

What is checked is what is sent: arguments that parsers could read differently are refused. Wrong
ones are refused, or only logged and counted, because servers' schemas lie. A schema that cannot be
used lets everything pass: registration says so. Large arguments, and those of large schemas, are
checked in a thread; arguments of very many parts are not read, because reading them would hold up
all threads, and count as wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

from msgspec import Raw

from mcp_junction.calls.call import Call, Handler
from mcp_junction.config.settings import OFF, ON
from mcp_junction.errors import ArgumentsError
from mcp_junction.governance.schemas import MAX_PARTS, CompiledSchema, SchemaProblem, count_parts
from mcp_junction.governance.tool_facts import ToolFacts
from mcp_junction.policy.arguments import INLINE, Arguments, read_arguments
from mcp_junction.protocol.versions import INVALID_PARAMS
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome

log = logging.getLogger("mcp_junction.calls")

_NONE: Final = Raw(b"{}")
_TOO_MANY: Final = "they have too many parts to be checked; send less at a time"
_MAX_NAMED: Final = 10_000
_KEPT: Final = 1_000
"""Bytes of arguments that stay read while the call runs: the audit needs them, too."""


class ValidateArguments:
    """The stage that checks arguments."""

    def __init__(self, mode: str, invoke_mode: str) -> None:
        """``invoke_mode`` is for calls that came by ``invoke``."""
        # By whether a call came by invoke.
        self._checks = mode != OFF, invoke_mode != OFF
        self._refuses = mode == ON, invoke_mode == ON
        self.mismatches = 0
        """Calls whose arguments do not fit, but were sent."""
        self._named: set[str] = set()
        """The tools of which that was logged."""

    def bind(self, following: Handler) -> Handler:
        checks = self._checks

        def validate(call: Call) -> Awaitable[Outcome]:
            facts = call.facts
            if facts is None or facts.compiled is None or not checks[call.is_invoke]:
                return following(call)
            if call.is_resume:
                return following(call)
            raw = call.params.get("arguments", _NONE)
            if len(raw) > INLINE or facts.compiled.is_large:
                return self._check_large(call, following, facts, facts.compiled)
            try:
                arguments = call.arguments or read_arguments(raw, is_shallow=True)
                if facts.compiled.fits(arguments, len(raw)):
                    if len(raw) <= _KEPT or call.carried.idempotency_key or facts.fallbacks:
                        call.arguments = arguments
                    return following(call)
                problems = facts.compiled.find_problems(arguments, len(raw))
            except ArgumentsError as error:
                return refuse(str(error), ())
            return self._judge(call, following, facts, problems)

        return validate

    async def _check_large(
        self, call: Call, following: Handler, facts: ToolFacts, schema: CompiledSchema
    ) -> Outcome:
        raw = bytes(call.params.get("arguments", _NONE))
        try:
            arguments, problems = await asyncio.to_thread(_check, schema, raw)
        except ArgumentsError as error:
            return await refuse(str(error), ())
        if call.ended_by is not None:
            return call.ended_by
        if call.carried.idempotency_key is not None or facts.fallbacks:
            call.arguments = arguments
        if not problems:
            return await following(call)
        return await self._judge(call, following, facts, problems)

    def _judge(
        self, call: Call, following: Handler, facts: ToolFacts, problems: list[SchemaProblem]
    ) -> Awaitable[Outcome]:
        if self._refuses[call.is_invoke]:
            first = problems[0]
            where = f"{first.path}: " if first.path else ""
            words = f"the arguments do not fit the schema of the tool: {where}{first.message}"
            return refuse(words, problems)
        self.mismatches += 1
        self._warn(call, facts, problems[0])
        return following(call)

    def _warn(self, call: Call, facts: ToolFacts, problem: SchemaProblem) -> None:
        """Log a mismatch, the first of each tool as a warning."""
        name = call.route.canonical if call.route is not None else facts.target.name
        level = logging.DEBUG if name in self._named else logging.WARNING
        if len(self._named) < _MAX_NAMED:
            self._named.add(name)
        words = "arguments of a call of %.200s do not fit its schema at %r: %s; they were sent"
        log.log(level, words, name, problem.path, problem.message)


def _check(schema: CompiledSchema, raw: bytes) -> tuple[Arguments | None, list[SchemaProblem]]:
    if count_parts(raw) > MAX_PARTS:
        return None, [SchemaProblem("", _TOO_MANY)]
    arguments = read_arguments(raw, is_shallow=True)
    return arguments, schema.find_problems(arguments, len(raw))


async def refuse(message: str, problems: list[SchemaProblem] | tuple[()]) -> Outcome:
    """Answer a call whose arguments are wrong."""
    errors = [{"path": one.path, "message": one.message} for one in problems]
    errors = errors or [{"path": "", "message": message}]
    return outcomes.failed(INVALID_PARAMS, message, Delivery.NOT_SENT, errors=errors)
