"""Authentication: bearer keys to Principals.

Noun: *KeyRing* (the keys in force, from the store). Only hashes of keys are stored.
"""
