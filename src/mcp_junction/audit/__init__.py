"""Who did what: decisions, calls and administrative acts, in chains that show tampering.

Nouns: *Entry* (what a caller tells), *AuditLog* (one writer: buffers, seals, stores), *Chain*
(each row's mac covers the one before), *checkpoint* (count and head of a chain, kept outside the
store), *anchor* (a row that vouches for what retention removed), *Finding* (the first bad row). Not
logging, and not metrics.
"""
