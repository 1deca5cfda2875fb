"""Makes the stages of governed calls from the parts of Governance.

Only the service imports it: the stdio mode has no such stages. Their order is the pipeline's.
"""

from __future__ import annotations

from collections.abc import Callable

from mcp_junction.calls.call import Call
from mcp_junction.calls.pipeline import GovernedStages, MethodStage
from mcp_junction.calls.stages.admit import AdmitCalls
from mcp_junction.calls.stages.audit import CallAudit
from mcp_junction.calls.stages.breaker import CircuitBreaker
from mcp_junction.calls.stages.fallback import FallbackCalls
from mcp_junction.calls.stages.idempotency import RunOnce
from mcp_junction.calls.stages.judge import Authorizer
from mcp_junction.calls.stages.limit import LimitCalls
from mcp_junction.calls.stages.retry import RetryCalls
from mcp_junction.calls.stages.validate import ValidateArguments
from mcp_junction.config.settings import Settings
from mcp_junction.governance.governance import Governance, retry_policy_of
from mcp_junction.resilience.clock import Clock
from mcp_junction.upstream.outcome import Outcome


def make_governed_stages(
    governance: Governance,
    clock: Clock,
    settings: Settings,
    audit: CallAudit | None = None,
    note_first: Callable[[Call, Outcome | None], None] | None = None,
) -> GovernedStages:
    """Make the stages; without an audit, none that would write an intent to it.

    ``note_first`` is told of first attempts that end without a result.
    """
    authorizer = Authorizer(governance.policy, governance.facts)
    limit = LimitCalls(governance.limits)
    validate = ValidateArguments(settings.validate, settings.validate_invoke)
    record = admit = None
    if audit is not None:
        record = audit.record
        admit = AdmitCalls(audit, governance.admission, governance.approvals)
    breaker = CircuitBreaker(governance.circuits, is_settled=True)
    return GovernedStages(
        authorize=MethodStage(authorizer.bind_authorize),
        limit=limit,
        validate=validate,
        idempotency=RunOnce(governance.claims),
        fallback=FallbackCalls(authorizer, (limit, validate), record),
        admit=admit,
        retry=RetryCalls(
            retry_policy_of(settings),
            governance.facts,
            clock,
            settle=breaker.settle,
            note_first=note_first,
        ),
        recheck=MethodStage(authorizer.bind_recheck),
        breaker=breaker,
    )
