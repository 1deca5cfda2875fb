"""Puts the parts of Governance together, with what the store has of them."""

from __future__ import annotations

from mcp_junction.audit.log import AuditLog
from mcp_junction.config.door import DoorConfig
from mcp_junction.config.settings import Settings
from mcp_junction.governance.admission import Admission
from mcp_junction.governance.approvals import Approvals
from mcp_junction.governance.call_limits import CallLimits
from mcp_junction.governance.circuits import Circuits
from mcp_junction.governance.condition_compiler import ConditionCompiler
from mcp_junction.governance.door_grants import DoorGrants
from mcp_junction.governance.escalations import Escalations
from mcp_junction.governance.from_settings import breaker_settings_of, buckets_of, cache_ttl_of
from mcp_junction.governance.governance import Governance
from mcp_junction.governance.idempotency_claims import IdempotencyClaims
from mcp_junction.governance.policy_sync import PolicySync
from mcp_junction.governance.schemas import SchemaCache
from mcp_junction.governance.server_ids import ServerIds
from mcp_junction.governance.tool_facts import ToolFactsCache
from mcp_junction.governance.tool_settings import ToolSettings
from mcp_junction.governance.webhooks import Webhook
from mcp_junction.policy.live_policy import LivePolicy
from mcp_junction.resilience.clock import Clock
from mcp_junction.store.store import Store
from mcp_junction.telemetry.bus import Bus


async def open_governance(
    settings: Settings,
    store: Store,
    audit: AuditLog,
    bus: Bus,
    tool_settings: ToolSettings,
    clock: Clock,
    door: DoorConfig | None = None,
) -> Governance:
    """Make Governance for a service. Raises StoreUnavailable."""
    server_ids = ServerIds()
    conditions = ConditionCompiler()
    policy = LivePolicy(server_ids, cache_ttl_of(settings), conditions.compiled)
    sync = PolicySync(store, policy, clock, conditions=conditions)
    await sync.open()
    circuits = Circuits(breaker_settings_of(settings), store.circuits, bus)
    await circuits.restore()
    limits = CallLimits(
        buckets_of(settings.limit_agent),
        buckets_of(settings.limit_server),
        buckets_of(settings.limit_tool),
        store.limits,
    )
    await limits.load()
    escalations = Escalations(store.escalations, bus, clock, settings.audit_retention_days)
    await escalations.restore()
    wait = settings.approval_wait_ms / 1000
    approvals = Approvals(store.approvals, audit, bus, clock, wait)
    parked = settings.parked_ms / 1000
    return Governance(
        policy,
        tool_settings,
        ToolFactsCache(tool_settings, SchemaCache()),
        circuits=circuits,
        claims=IdempotencyClaims(store.claims, store.audit, audit.writer, clock, parked),
        escalations=escalations,
        limits=limits,
        admission=Admission(store.policy, store.approvals),
        approvals=approvals,
        webhook=_make_webhook(settings, store, bus, clock),
        server_ids=server_ids,
        sync=sync,
        door_grants=DoorGrants(door, sync, server_ids) if door is not None else None,
    )


def _make_webhook(settings: Settings, store: Store, bus: Bus, clock: Clock) -> Webhook | None:
    if not settings.webhook_url:
        return None
    return Webhook(
        settings.webhook_url,
        settings.webhook_secret,
        bus,
        store.webhook_deliveries,
        clock,
        allow_private=settings.webhook_allow_private,
    )
