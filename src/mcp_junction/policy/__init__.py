"""Who may do what: pure, facts in, decision out. So far: who is asking.

Nouns: *Principal*.
"""
