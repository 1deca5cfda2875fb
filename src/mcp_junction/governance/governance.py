"""Governance: the parts that decide about, limit, repeat and keep calls, put together once.

``cli/serve.py`` makes it and passes it to Junction; the stdio mode has none, because its user is
its owner.
"""

from __future__ import annotations

import msgspec

from mcp_junction.governance.admission import Admission
from mcp_junction.governance.call_limits import CallLimits
from mcp_junction.governance.circuits import Circuits
from mcp_junction.governance.claims import IdempotencyClaims
from mcp_junction.governance.escalations import Escalations
from mcp_junction.governance.tool_facts import ToolFactsCache
from mcp_junction.governance.tool_settings import ToolSettings
from mcp_junction.policy.live_policy import LivePolicy


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
