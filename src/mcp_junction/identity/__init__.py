"""Authentication: bearer keys and access tokens to Principals.

Nouns: *KeyRing* (the keys in force, from the store; only their hashes are stored), *AccessTokens*
(JWTs of the door's issuer, verified), *IssuerKeys* (the public keys they are verified with).
"""
