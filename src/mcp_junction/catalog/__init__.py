"""Who offers what, and what one client sees of it.

Nouns: *Offer* (a tool as its server described it), *Route* (where a name leads), *Catalog* (all
offers, immutable, one generation at a time), *View* (the catalog under one spelling: names to
routes, and lists as ready bytes). Discovery fills it; nothing here talks to clients.
"""
