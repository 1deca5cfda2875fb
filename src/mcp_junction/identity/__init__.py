"""Who is asking: bearer keys to Principals.

Nouns: *Key* (what is kept of one: a hash, never the key), *KeyRing* (all of them, in a file).
"""
