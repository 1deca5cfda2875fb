"""Finding tools by what they are for.

Nouns: *Document* (a tool as the index knows it: words by field), *KeywordIndex* (documents to
scores), *Finder* (keeps the index true to what servers offer, a slice at a time). Who may see what
is found is decided above: a search is given what it may answer with.
"""
