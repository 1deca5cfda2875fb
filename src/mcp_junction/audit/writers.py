"""Which writers of the audit have died without saying so. Pure but for asking after a process."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Final

from mcp_junction.store.records import AuditWriter

LEASE: Final = 15.0
"""A writer that was not seen for so long is dead, wherever it was."""


def dead_writers(writers: Sequence[AuditWriter], own: str, now: float) -> list[str]:
    """Those that are not closed and will not write again."""
    host = socket.gethostname()
    return [
        writer.writer
        for writer in writers
        if writer.closed_at is None and writer.writer != own and _is_dead(writer, host, now)
    ]


def _is_dead(writer: AuditWriter, host: str, now: float) -> bool:
    if now - writer.seen_at > LEASE:
        return True
    return writer.host == host and not _is_running(writer.pid)


def _is_running(pid: int) -> bool:
    if os.name == "nt":  # there, asking would end it: the lease decides
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
