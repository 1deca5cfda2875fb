"""Writers: which of the audit's writers are dead, and rows about the ends of their chains."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any, Final

from mcp_junction.audit.entries import Entry
from mcp_junction.store.audit_records import AuditHead, AuditRow, AuditWriter
from mcp_junction.telemetry.events import OutcomeName

LEASE: Final = 15.0
"""Seconds without a heartbeat after which a writer counts as dead."""
_FIRST_NAMESPACE: Final = 0xEFFFFFFC
"""The number that Linux gives the PID namespace of the machine itself."""


def identify_host() -> str:
    """Name the machine and, in a container, its PID namespace: a pid means nothing outside it.

    Containers may share the name of their machine, and live in namespaces of their own.
    """
    name = socket.gethostname()
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # not Linux
        return name
    return name if namespace == _FIRST_NAMESPACE else f"{name}/{namespace}"


def find_dead(writers: Sequence[AuditWriter], own: str, now: float) -> list[str]:
    """Find the writers that are not closed and will not write again."""
    host = identify_host()
    return [
        one.writer
        for one in writers
        if one.closed_at is None
        and one.writer != own
        and (now - one.seen_at > LEASE or (one.host == host and not _is_running(one.pid)))
    ]


def _is_running(pid: int) -> bool:
    if os.name == "nt":  # there, the signal would end the process: the lease decides
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def describe_head(head: AuditHead) -> dict[str, Any]:
    """Return a place in a chain as the detail of a row."""
    return {"writer": head.writer, "seq": head.seq, "head": head.mac.hex()}


def unknown_outcome(row: AuditRow, now: float) -> Entry:
    """Make the outcome that closes the intent of a dead writer."""
    return Entry(
        kind="outcome",
        actor=row.actor,
        role=row.role,
        action=row.action,
        at=now,
        correlation_id=row.correlation_id,
        server_id=row.server_id,
        target=row.target,
        outcome=OutcomeName.UNKNOWN,
        delivery="unknown",
        attempts=row.attempts,
        closes=f"{row.writer}:{row.seq}",
        agent_id=row.agent_id,
        tool_name=row.tool_name,
        rule=row.rule,
        ticket_id=row.ticket_id,
        task_id=row.task_id,
    )
