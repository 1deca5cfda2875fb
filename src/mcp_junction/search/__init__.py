"""Search for tools by what they are for.

Nouns: *Fields* (a tool's terms, by field), *KeywordIndex* (BM25 over them), *IndexUpdater* (keeps
the index up to date with what servers offer, a slice at a time). Who may see what is found is
decided above: a search is passed a predicate that admits tools.
"""
