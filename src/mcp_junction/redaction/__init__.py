"""Redaction: everything that keeps secrets out of what is shown, logged, stored or told.

Secrets are known in two ways: by the *name* they stand under (``names``) and by their *value*
(``secrets`` finds the values that a server is given, ``known`` remembers those of all servers and
our own). Who shows something uses one of

- ``connections``: a connection as REST shows it, and taking a shown one back;
- ``texts``: errors and stderr of a server, without what that server is given;
- ``payloads``: parameters and results as the audit keeps them;
- ``known``: any text, without every secret that this process knows; so the log, and events.

Sealing what is stored is the vault's, not done here. A result on its way to its caller is not
touched.
"""
