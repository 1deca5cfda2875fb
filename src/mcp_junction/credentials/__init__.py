"""Credentials for servers: who is signed in where, and how it stays so.

Nouns: *Credentials* (all of them), *CredentialSource* (the token of one subject for one server,
which links ask for), *OAuthFlow* (the requests to a server's issuer), *Logins* (sign-ins).
The rules are in ``oauth/``, the rows in ``store/credentials.py``.
"""
