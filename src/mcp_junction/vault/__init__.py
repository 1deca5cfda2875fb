"""Secrets at rest: sealing them.

Noun: *Vault* (seals values with the credential key). It stores nothing itself but the key file.
What is shown of secrets is ``redaction/``.
"""
