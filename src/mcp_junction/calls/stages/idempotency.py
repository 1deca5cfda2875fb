"""RunOnce: a call with an idempotency key runs once; its repetitions get the same answer.

Claims are ``governance/idempotency_claims.py``. A key is bound to the arguments that are sent. What
is kept has no envelope of an era: the listener adds it. A call that is resumed has its claim
already, which is settled where it is resumed (``eras/resume.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from msgspec import Raw

from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.failures import may_have_run, was_answered
from mcp_junction.errors import ArgumentsError, StoreError
from mcp_junction.governance.idempotency_claims import ClaimVerdict, IdempotencyClaims, KeptResult
from mcp_junction.policy.arguments import INLINE, Arguments, read_arguments
from mcp_junction.policy.principal import Role
from mcp_junction.protocol import envelope
from mcp_junction.protocol.frames import octets
from mcp_junction.protocol.versions import (
    DENIED,
    IDEMPOTENCY_CONFLICT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    SERVER_UNAVAILABLE,
)
from mcp_junction.resilience.idempotency import (
    ClaimAction,
    ClaimEnd,
    ClaimKey,
    check_key,
    owner_of,
    settle_claim,
)
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import RESULT, SUSPENDED, Delivery, Outcome, OutcomeKind

_AGENT: Final = Role.AGENT
_CONFLICT: Final = (
    "this idempotency key was used with other arguments; send those again, or make up another key"
)
_EXECUTED: Final = (
    "a call with this idempotency key has run, and its result was too large to keep; it is not run"
    " again: use another key if it should be"
)
_UNKNOWN: Final = (
    "a call with this idempotency key may have run: no answer to it came; it is not run again: find"
    " out what it did, and use another key if it should be"
)
_NO_STORE: Final = (
    "the store cannot be reached, so a call with an idempotency key is not run; try again later"
)
_USED_TOKEN: Final = (
    "the token was used before, and there is no answer under this idempotency key; have a new one"
    " made"
)


async def _read(raw: Raw | bytes) -> Arguments:
    """Read arguments, large ones in a thread. Raises ArgumentsError."""
    if len(raw) <= INLINE:
        return read_arguments(raw)
    return await asyncio.to_thread(read_arguments, raw)


class RunOnce:
    """The stage of calls with an idempotency key; others pass."""

    def __init__(self, claims: IdempotencyClaims) -> None:
        self._claims = claims

    def __call__(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        if call.carried.idempotency_key is None or call.is_resume:
            return following(call)
        return self._run(call, call.carried.idempotency_key, following)

    async def _run(self, call: Call, key: str, following: Handler) -> Outcome:
        problem = check_key(key)
        if problem is not None:
            return outcomes.failed(INVALID_PARAMS, problem, Delivery.NOT_SENT)
        try:
            read = call.arguments or await _read(call.params.get("arguments") or b"")
        except ArgumentsError as error:
            return outcomes.failed(INVALID_PARAMS, str(error), Delivery.NOT_SENT)
        try:
            verdict = await self._claim(call, key, read.hash)
        except StoreError:
            return outcomes.failed(SERVER_UNAVAILABLE, _NO_STORE, Delivery.NOT_SENT)
        if verdict is None:
            assert call.ended_by is not None
            return call.ended_by
        if verdict.action is not ClaimAction.RUN:
            return _answer(verdict)
        if not verdict.claim_id:
            return outcomes.failed(DENIED, _USED_TOKEN, Delivery.NOT_SENT)
        return await self._execute(call, verdict.claim_id, following)

    async def _claim(self, call: Call, key: str, arguments: str) -> ClaimVerdict | None:
        may_run = call.decision is None or not call.decision.replay_only
        call.may_have_run = True  # if it ends while it waits: the one that it waits for may run
        try:
            return await self._claims.claim(
                _claim_key(call, key), arguments, call.ending, may_run=may_run
            )
        finally:
            call.may_have_run = False

    async def _execute(self, call: Call, claim_id: str, following: Handler) -> Outcome:
        """Run a call that has the claim; whatever becomes of it, the claim is settled."""
        if call.ended_by is not None:
            await self._claims.settle(claim_id, ClaimEnd.RELEASE)
            return call.ended_by
        call.claim = claim_id
        outcome: Outcome | None = None
        try:
            outcome = await following(call)
        finally:
            if outcome is None:
                is_sent = call.delivery is not Delivery.NOT_SENT
                end = ClaimEnd.MARK_UNKNOWN if is_sent else ClaimEnd.RELEASE
                self._claims.settle_soon(claim_id, end)
        await settle(self._claims, claim_id, outcome)
        return outcome


async def settle(claims: IdempotencyClaims, claim_id: str, outcome: Outcome) -> None:
    """Settle the claim of a call by its outcome."""
    end = _end_of(outcome)
    await claims.settle(claim_id, end, _keep(outcome) if end is ClaimEnd.KEEP else None)


async def settle_resumed(claims: IdempotencyClaims, claim_id: str, outcome: Outcome) -> None:
    """Settle the claim of a call that was resumed: it was sent before, so it is not given up."""
    if _end_of(outcome) is ClaimEnd.RELEASE:
        await claims.settle(claim_id, ClaimEnd.HOLD)
    else:
        await settle(claims, claim_id, outcome)


def _end_of(outcome: Outcome) -> ClaimEnd:
    if outcome.delivery is Delivery.EXECUTED:
        return ClaimEnd.MARK_EXECUTED  # its answer could not be used
    return settle_claim(
        was_sent=may_have_run(outcome),
        was_answered=was_answered(outcome),
        is_parked=outcome.kind is SUSPENDED,
        size=len(outcome.payload),
    )


def _keep(outcome: Outcome) -> KeptResult:
    payload, is_enveloped = octets(outcome.payload), outcome.is_enveloped
    if is_enveloped and envelope.result_type(payload) == envelope.COMPLETE:
        payload, is_enveloped = envelope.to_handshake_result(payload), False
    return KeptResult(outcome.kind.value, outcome.target, Raw(payload), is_enveloped)


def _claim_key(call: Call, key: str) -> ClaimKey:
    """Say whose key it is, and for which tool."""
    principal, route = call.caller.principal, call.route
    assert route is not None, "resolve comes first"
    named = call.carried.agent_id
    role = principal.role if named is None or named == principal.id else _AGENT
    who = owner_of(call.agent_id, role.value)
    return ClaimKey(who, route.upstream.definition.id, route.pair.name, key)


def _answer(verdict: ClaimVerdict) -> Outcome:
    if verdict.kept is not None:
        kept = verdict.kept
        kind = RESULT if kept.kind == RESULT.value else OutcomeKind.ERROR
        return Outcome(kind, kept.payload, None, 0, kept.target, kept.is_enveloped)
    if verdict.action is ClaimAction.CONFLICT:
        return outcomes.failed(IDEMPOTENCY_CONFLICT, _CONFLICT, Delivery.NOT_SENT)
    if verdict.action is ClaimAction.EXECUTED:
        return outcomes.failed(INTERNAL_ERROR, _EXECUTED, Delivery.EXECUTED)
    return outcomes.failed(INTERNAL_ERROR, _UNKNOWN, Delivery.UNKNOWN)
