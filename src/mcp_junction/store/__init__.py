"""Everything that survives a restart: one schema, written once, on SQLite or PostgreSQL.

Nouns: *Store* (all tables of one database), *Servers*, *Tools*, *Skills*, *KeyTable*, *Events*,
*AuditTrail* (its tables), *Table* (converts records to rows), *Database* (the protocol of the two
backends), *Script* (one transaction, as a generator of statements). Not a cache, and never on the
path of a call: calls read the Snapshot.
"""
