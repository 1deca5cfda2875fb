"""Secrets at rest and on display: sealing them, and masking them.

Nouns: *Vault* (seals values with the credential key), *mask* (what a response shows instead of a
secret). It stores nothing itself but the key file.
"""
