"""Makes the stages of governed calls from the parts of Governance.

Only the service imports it: the stdio mode has no such stages. Their order is the pipeline's.
"""

from __future__ import annotations

from mcp_junction.calls.pipeline import GovernedStages
from mcp_junction.config.settings import Settings
from mcp_junction.governance.governance import Governance
from mcp_junction.resilience.clock import Clock


def make_governed_stages(
    governance: Governance,  # noqa: ARG001 - the stages follow
    clock: Clock,  # noqa: ARG001
    settings: Settings,  # noqa: ARG001
) -> GovernedStages:
    """Make the stages; those whose part is missing are left out."""
    return GovernedStages()
