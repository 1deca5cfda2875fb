"""What tools are good for, found out offline.

Nouns: *Skill* (a name and what it means), *taxonomy* (those we begin with), *Embedder* (texts to
vectors), *Subject* (a tool to be classified), *Classifier* (subjects to *Verdicts*: one to three
skills, each with a confidence), *Model* (all that is computed with vectors, as the service calls
it), *ModelWorker* (the Model in a process of its own, so that its weights and its work are not the
service's). It knows no store and no server: who feeds it, and keeps what it says, is
``registry/background_classifier.py``.
"""
