"""StatementFaults: makes chosen statements of a database fail or hang, below the store's boundary.

It gives connection classes for both drivers, which ``open_store`` takes. What the backends make of
the faults is theirs: nothing here knows the store's errors.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterable
from typing import Any

Fault = Callable[[], BaseException]
"""Makes the exception that a driver would raise."""


class StatementFaults:
    """Which statements fail or hang now, and which were seen at all."""

    def __init__(self) -> None:
        self.seen: dict[str, None] = {}
        """Every statement so far, in the order in which they were first met."""
        self.met = 0
        """How often a fault was met."""
        self._text: str | None = None
        self._fault: Fault | None = None
        self._released = threading.Event()

    def fail(self, text: str, fault: Fault) -> None:
        """Let statements that contain a text fail."""
        self._released.clear()
        self._text, self._fault = text, fault

    def hang(self, text: str) -> None:
        """Let statements that contain a text wait until ``clear`` is called."""
        self._released.clear()
        self._text, self._fault = text, None

    def clear(self) -> None:
        """Let everything pass, also what hangs."""
        self._text = None
        self._released.set()

    def connection_class(self, url: str) -> type[Any]:
        """What connections to a database of this URL are to be made of."""
        return self._sqlite() if url.startswith("sqlite") else self._postgres()

    def _meets(self, sql: str) -> bool:
        self.seen.setdefault(sql)
        is_met = self._text is not None and self._text in sql
        self.met += is_met
        return is_met

    def _check(self, sql: str) -> None:
        """In a thread: fail or hang, if that is wanted of the statement."""
        if self._meets(sql):
            if self._fault is not None:
                raise self._fault()
            self._released.wait()

    async def _check_later(self, sql: str) -> None:
        """On the event loop: the same."""
        if self._meets(sql):
            if self._fault is not None:
                raise self._fault()
            while not self._released.is_set():  # noqa: ASYNC110 - another thread may set it
                await asyncio.sleep(0.01)

    def _sqlite(self) -> type[sqlite3.Connection]:
        faults = self

        class FaultyConnection(sqlite3.Connection):
            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                faults._check(sql)
                return super().execute(sql, parameters)

            def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
                faults._check(sql)
                return super().executemany(sql, parameters)

        return FaultyConnection

    def _postgres(self) -> type[Any]:
        import asyncpg

        faults = self

        class FaultyConnection(asyncpg.Connection):  # type: ignore[misc]
            async def fetch(self, query: str, *args: Any, **more: Any) -> Any:
                await faults._check_later(query)
                return await super().fetch(query, *args, **more)

            async def executemany(self, command: str, args: Any, **more: Any) -> Any:
                await faults._check_later(command)
                return await super().executemany(command, args, **more)

            async def copy_records_to_table(self, table_name: str, **more: Any) -> Any:
                await faults._check_later(f"COPY {table_name}")
                return await super().copy_records_to_table(table_name, **more)

            async def execute(self, query: str, *args: Any, **more: Any) -> Any:
                await faults._check_later(query)
                return await super().execute(query, *args, **more)

        return FaultyConnection
