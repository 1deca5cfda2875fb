"""Governance: the parts that decide about, limit, repeat and keep calls, put together once.

``cli/serve.py`` has it made and passes it to Junction; the stdio mode has none, because its user is
its owner. What governs calls is derived from the settings here: those have the units of their
environment variables (milliseconds, seconds, minutes), and everything else is in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import msgspec

from mcp_junction.audit.log import AuditLog
from mcp_junction.config.door import DoorConfig
from mcp_junction.config.merge import parse_rate
from mcp_junction.config.settings import Settings
from mcp_junction.governance.admission import Admission
from mcp_junction.governance.approvals import Approvals
from mcp_junction.governance.call_limits import CallLimits
from mcp_junction.governance.condition_compiler import ConditionCompiler
from mcp_junction.governance.failures import Circuits, Escalations
from mcp_junction.governance.idempotency_claims import IdempotencyClaims
from mcp_junction.governance.policy_sync import ClaimGrants, PolicySync
from mcp_junction.governance.schemas import SchemaCache
from mcp_junction.governance.tool_facts import ToolFactsCache, ToolSettings
from mcp_junction.governance.webhooks import Webhook
from mcp_junction.policy.live_policy import LivePolicy
from mcp_junction.resilience.breaker import BreakerSettings
from mcp_junction.resilience.buckets import Buckets
from mcp_junction.resilience.clock import Clock
from mcp_junction.resilience.retry import RetryPolicy
from mcp_junction.store.store import Store
from mcp_junction.tasks import TaskScope
from mcp_junction.telemetry.bus import Bus
from mcp_junction.upstream.events import ServerSink
from mcp_junction.upstream.upstream import Upstream


class ServerIds(Mapping[str, str]):
    """The ids that grants name servers by, from their keys in the catalog, as they are now.

    A rename changes the key alone.
    """

    def __init__(self) -> None:
        self.servers: Mapping[str, Upstream] = {}
        """All servers; Junction sets it."""

    def __getitem__(self, key: str) -> str:
        return self.servers[key].definition.id

    def __iter__(self) -> Iterator[str]:
        return iter(self.servers)

    def __len__(self) -> int:
        return len(self.servers)


class Governance(msgspec.Struct, eq=False):
    """What the governed stages of the pipeline are made of."""

    policy: LivePolicy
    tool_settings: ToolSettings
    facts: ToolFactsCache
    circuits: Circuits
    claims: IdempotencyClaims
    escalations: Escalations
    limits: CallLimits
    admission: Admission
    approvals: Approvals
    server_ids: ServerIds
    sync: PolicySync
    """Keeps the policy as the store has it."""
    webhook: Webhook | None
    claim_grants: ClaimGrants | None
    """What access tokens give, where any are accepted."""

    @property
    def server_sinks(self) -> tuple[ServerSink, ...]:
        """The parts that follow what happens to servers."""
        grants = self.claim_grants
        return (self.circuits.follow, *((grants.follow,) if grants is not None else ()))

    def start(self, tasks: TaskScope, clock: Clock) -> None:
        """Run what its parts do in the background, until the scope ends."""
        tasks.supervise("policy", self.sync.run)
        if self.webhook is not None:
            tasks.supervise("webhook", self.webhook.run, is_vital=False)
        tasks.supervise("circuits", self.circuits.run, is_vital=False)
        tasks.supervise("limits", partial(self.limits.run, clock), is_vital=False)
        tasks.supervise("claims", self.claims.run)
        tasks.supervise("claims retention", self.claims.retire_hourly, is_vital=False)
        tasks.supervise("escalations", self.escalations.run, is_vital=False)
        keep = self.escalations.retire_daily
        tasks.supervise("escalations retention", keep, is_vital=False)


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
    wait, parked = settings.approval_wait_ms / 1000, settings.parked_ms / 1000
    return Governance(
        policy,
        tool_settings,
        ToolFactsCache(tool_settings, SchemaCache()),
        circuits=circuits,
        claims=IdempotencyClaims(store.claims, store.audit, audit.writer, clock, parked),
        escalations=escalations,
        limits=limits,
        admission=Admission(store.policy, store.approvals),
        approvals=Approvals(store.approvals, audit, bus, clock, wait),
        server_ids=server_ids,
        sync=sync,
        webhook=_make_webhook(settings, store, bus, clock),
        claim_grants=ClaimGrants(door, sync, server_ids) if door is not None else None,
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


# -- from the settings


def retry_policy_of(settings: Settings) -> RetryPolicy:
    """Return how often and after how long a call is tried again."""
    return RetryPolicy(
        max_attempts=settings.retry_max_attempts,
        base=settings.retry_base_ms / 1000,
        factor=settings.retry_factor,
        max_delay=settings.retry_max_delay_ms / 1000,
    )


def breaker_settings_of(settings: Settings) -> BreakerSettings:
    """Return when circuits open, for how long, and how many calls test them."""
    return BreakerSettings(
        threshold=settings.circuit_failure_threshold,
        cooldown=float(settings.circuit_cooldown),
        half_open_max=settings.circuit_half_open_max,
    )


def cache_ttl_of(settings: Settings) -> float:
    """Return the seconds that a decision about a call is remembered; 0 is not at all."""
    return settings.auth_cache_ttl * 60.0


def buckets_of(rate: str) -> Buckets | None:
    """Make the buckets of ``limit_agent``, ``limit_server`` or ``limit_tool``; None is no limit.

    100/60 allows a hundred at once, and then one each 0.6 seconds.
    """
    limit = parse_rate(rate)
    return None if limit is None else Buckets(limit.calls / limit.seconds, limit.calls)
