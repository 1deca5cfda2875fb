"""Commands, one file each; ``main.py`` finds the one that is meant and loads only that.

Nouns: none of its own. A command parses, calls the composition root and prints.
"""
