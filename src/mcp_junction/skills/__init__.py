"""What tools are good for, found out offline.

Nouns: *Skill* (a name and what it means), *taxonomy* (those we begin with), *Embedder* (texts to
vectors), *Subject* (a tool to be classified), *Classifier* (subjects to *Verdicts*: one to three
skills, each with a confidence). It knows no store and no server: who feeds it, and keeps what it
says, is ``registry/classifying.py``.
"""
