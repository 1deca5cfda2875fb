"""Sessions: one downstream conversation each.

Nouns: *Session*. Which wire it came in on is the listener's business; a session only has a way to
send.
"""
