"""Encryption of secrets at rest.

Noun: *Vault* (encrypts and signs values with the credential key). It stores nothing but the key
file. What is shown of secrets is ``redaction/``.
"""
