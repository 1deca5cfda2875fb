"""AuthEvents: announces and audits what happens to credentials for servers, without secrets."""

from __future__ import annotations

from typing import Final

from mcp_junction.credentials.credentials import STATE_CHANGED
from mcp_junction.credentials.source import CredentialSource
from mcp_junction.registry.context import RegistryContext
from mcp_junction.telemetry.events import OutcomeName

_FAILURES: Final = ("refresh_failed", "login_refused", "revocation_failed")


class AuthEvents:
    """Listens to Credentials."""

    def __init__(self, context: RegistryContext) -> None:
        self._context = context

    def note(self, source: CredentialSource, action: str, detail: str, actor: str) -> None:
        """Take what happened to a credential."""
        member = self._context.members.find(source.definition.id)
        if member is None or not self._context.is_open:
            return
        if action == STATE_CHANGED:
            facts = source.facts
            self._context.publish(
                "server.auth_changed",
                member.record,
                state=source.state.value,
                subject=source.subject,
                issuer=facts.issuer if facts is not None else None,
                reason=detail or None,
            )
            return
        audit = self._context.audit
        audit.record(
            audit.entry(
                "outcome",
                actor,
                f"auth.{action}",
                server_id=member.id,
                target=member.name,
                outcome=OutcomeName.ERROR if action in _FAILURES else OutcomeName.OK,
                detail={"subject": source.subject, **({"reason": detail} if detail else {})},
            )
        )
