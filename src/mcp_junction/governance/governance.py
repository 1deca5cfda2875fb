"""Governance: the parts that decide about, limit, repeat and keep calls, put together once.

``cli/serve.py`` makes it and passes it to Junction; the stdio mode has none, because its user is
its owner.
"""

from __future__ import annotations

from functools import partial

import msgspec

from mcp_junction.governance.admission import Admission
from mcp_junction.governance.approvals import Approvals
from mcp_junction.governance.call_limits import CallLimits
from mcp_junction.governance.circuits import Circuits
from mcp_junction.governance.door_grants import DoorGrants
from mcp_junction.governance.escalations import Escalations
from mcp_junction.governance.idempotency_claims import IdempotencyClaims
from mcp_junction.governance.policy_sync import PolicySync
from mcp_junction.governance.server_ids import ServerIds
from mcp_junction.governance.tool_facts import ToolFactsCache
from mcp_junction.governance.tool_settings import ToolSettings
from mcp_junction.governance.webhooks import Webhook
from mcp_junction.policy.live_policy import LivePolicy
from mcp_junction.resilience.clock import Clock
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.events import ServerSink


class Governance(msgspec.Struct, eq=False):
    """What the governed stages of the pipeline are made of."""

    policy: LivePolicy
    tool_settings: ToolSettings
    facts: ToolFactsCache
    circuits: Circuits | None = None
    claims: IdempotencyClaims | None = None
    escalations: Escalations | None = None
    limits: CallLimits | None = None
    admission: Admission | None = None
    approvals: Approvals | None = None
    webhook: Webhook | None = None
    server_ids: ServerIds = msgspec.field(default_factory=ServerIds)
    sync: PolicySync | None = None
    """Keeps the policy as the store has it; None where there is no store."""
    door_grants: DoorGrants | None = None
    """What access tokens give, where any are accepted."""

    @property
    def server_sinks(self) -> tuple[ServerSink, ...]:
        """The parts that follow what happens to servers."""
        parts = (self.circuits, self.door_grants)
        return tuple(part.follow for part in parts if part is not None)

    def start(self, tasks: TaskScope, clock: Clock) -> None:
        """Run what its parts do in the background, until the scope ends."""
        if self.sync is not None:
            tasks.supervise("policy", self.sync.run)
        if self.webhook is not None:
            tasks.supervise("webhook", self.webhook.run, is_vital=False)
        if self.circuits is not None:
            tasks.supervise("circuits", self.circuits.run, is_vital=False)
        if self.limits is not None:
            tasks.supervise("limits", partial(self.limits.run, clock), is_vital=False)
        if self.claims is not None:
            tasks.supervise("claims", self.claims.run)
            tasks.supervise("claims retention", self.claims.retire_hourly, is_vital=False)
        if self.escalations is not None:
            tasks.supervise("escalations", self.escalations.run, is_vital=False)
            keep = self.escalations.retire_daily
            tasks.supervise("escalations retention", keep, is_vital=False)
