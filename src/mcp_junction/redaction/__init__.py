"""Redaction: keeps secrets out of everything that is shown, logged, stored or sent as an event.

Secrets are recognised by the *name* they stand under (``detect``) and by their *value*
(``secrets`` finds the values in a server's definition, KnownSecrets remembers those of all servers
and our own). To redact

- a connection for a response, and to restore one that is sent back: ``connections``;
- settings for a response: ``settings``;
- errors and stderr of a server by its own secrets, and any text, such as log records and events, by
  all secrets of this process: ``texts``;
- parameters and results for the audit: ``payloads``.

Encrypting what is stored is the vault's job. Results on their way to a caller are not redacted.
"""
