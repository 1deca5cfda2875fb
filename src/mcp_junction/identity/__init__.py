"""Who is asking: bearer keys to Principals.

Noun: *KeyRing* (the keys in force, from the store). What is kept of a key is a hash, never the key.
"""
