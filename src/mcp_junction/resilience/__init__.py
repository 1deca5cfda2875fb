"""Waiting, retrying and giving up: pure rules, with the clock passed in.

Nouns: *Clock* (the time), *backoff* (delays between attempts), *Failure* (how an attempt failed),
*RetryPolicy* and *RetryBudget*, *Breaker* and *Breakers*, *TokenBucket* and *CallWindow* (rates and
quotas), *Claim* (on an idempotency key), *StallSweep* (ends connections whose peer does not read).
"""
