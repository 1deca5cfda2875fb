"""Fakes and fault tools that come with the product: what a test of Junction is built from.

Nouns: *FakeClock*, *FakeLink* and *FakeUpstream* (in-memory twins of the real ones), *MemorySink*,
the *ledger server* (writes down each call durably before it answers, crashes and misbehaves on
demand), *LineClient* (a program spoken to in raw JSON lines), *History* (what callers saw, checked
against the ledger), ``processes`` (a process tree as /proc shows it).

Nothing of Junction imports this room. Each module is imported by itself: the ledger server stands
on the standard library alone and starts in a few milliseconds.
"""
