"""StatementFaults: makes chosen statements of a database fail or hang.

It makes connection classes for both drivers, which ``open_store`` accepts, and knows nothing of the
store's own errors.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterable
from typing import Any

Fault = Callable[[], BaseException]
"""Makes an exception of the driver."""


class StatementFaults:
    """Decides which statements fail or hang, and records all statements."""

    def __init__(self) -> None:
        self.seen: dict[str, None] = {}
        """Every statement so far, in the order of their first use."""
        self.met = 0
        """How many statements failed or hung."""
        self._text: str | None = None
        self._fault: Fault | None = None
        self._released = threading.Event()

    def fail(self, text: str, fault: Fault) -> None:
        """Make statements that contain a text fail."""
        self._released.clear()
        self._text, self._fault = text, fault

    def hang(self, text: str) -> None:
        """Make statements that contain a text wait until ``clear`` is called."""
        self._released.clear()
        self._text, self._fault = text, None

    def clear(self) -> None:
        """Let all statements pass, also those that hang."""
        self._text = None
        self._released.set()

    def connection_class(self, url: str) -> type[Any]:
        """Make the class for connections to the database of this URL."""
        return self._sqlite() if url.startswith("sqlite") else self._postgres()

    def _must_hang(self, sql: str) -> bool:
        """Whether a statement must hang. Raises the fault of one that must fail."""
        self.seen.setdefault(sql)
        is_met = self._text is not None and self._text in sql
        self.met += is_met
        if is_met and self._fault is not None:
            raise self._fault()
        return is_met

    def _check(self, sql: str) -> None:
        """Fail or hang, if that is wanted of a statement; called in a thread."""
        if self._must_hang(sql):
            self._released.wait()

    async def _check_async(self, sql: str) -> None:
        """Do the same on the event loop."""
        if self._must_hang(sql):
            while not self._released.is_set():  # noqa: ASYNC110 - another thread may set it
                await asyncio.sleep(0.01)

    def _sqlite(self) -> type[sqlite3.Connection]:
        faults = self

        class FaultySqliteConnection(sqlite3.Connection):
            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                faults._check(sql)
                return super().execute(sql, parameters)

            def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
                faults._check(sql)
                return super().executemany(sql, parameters)

        return FaultySqliteConnection

    def _postgres(self) -> type[Any]:
        import asyncpg

        faults = self

        class FaultyPostgresConnection(asyncpg.Connection):  # type: ignore[misc]
            async def fetch(self, query: str, *args: Any, **more: Any) -> Any:
                await faults._check_async(query)
                return await super().fetch(query, *args, **more)

            async def executemany(self, command: str, args: Any, **more: Any) -> Any:
                await faults._check_async(command)
                return await super().executemany(command, args, **more)

            async def copy_records_to_table(self, table_name: str, **more: Any) -> Any:
                await faults._check_async(f"COPY {table_name}")
                return await super().copy_records_to_table(table_name, **more)

            async def execute(self, query: str, *args: Any, **more: Any) -> Any:
                await faults._check_async(query)
                return await super().execute(query, *args, **more)

        return FaultyPostgresConnection
