"""Waiting and giving up: rules about time, with the clock passed in.

Nouns: *Clock* (the time), *backoff* (delays between attempts), *StallSweep* (ends connections whose
peer does not read).
"""
