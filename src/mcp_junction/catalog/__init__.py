"""Who offers what, and what one caller sees of it, as ready-made bytes.

Nouns: *ListItem* (a tool as its server described it), *Route* (where a name leads), *Catalog* (all
lists of one moment), *Scope* (what one caller may see), *Roll* (all pairs by number), *View* (what
one Scope shows under one spelling).
"""
