"""Fakes and fault tools for tests of Junction.

Nouns: *FakeClock*, *FakeLink* and *FakeUpstream* (in-memory twins of the real ones), *MemorySink*,
the *ledger server* (records each call in a file before it answers; crashes and misbehaves on
demand), *LineClient* (a client that sends raw JSON lines), *history* (checks what callers saw
against the ledger), *FaultProxy* (``faults``), ``processes`` (reads the process tree from /proc).
What only our own tests need is in ``tests/fakes``.

Nothing of Junction imports this package. The ledger server uses the standard library alone and
starts in a few milliseconds.
"""
