"""A server that reads everything and never says a word."""

import sys

for _ in sys.stdin.buffer:
    pass
