"""RedactingFormatter: formats log records, tracebacks included, without secrets."""

from __future__ import annotations

import logging


class RedactingFormatter(logging.Formatter):
    """Formats records as usual, then hides every secret that this process knows."""

    def format(self, record: logging.LogRecord) -> str:
        # Imported where it is used: in stdio mode the servers are started before anything is said.
        from mcp_junction.redaction.known import KNOWN

        return KNOWN.redact(super().format(record))
