"""What must survive a restart: one schema, written once, on SQLite or PostgreSQL.

Nouns: *Store* (all shelves of one database), *shelf* (one noun's records: servers, tools, offers,
history, keys, settings, events, audit), *Database* (the protocol that the two backends fulfil),
*Script* (one transaction, as a dialogue of statements and rows). Not a cache, and never on the path
of a call: what calls read is the Snapshot.
"""
