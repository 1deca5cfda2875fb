"""The audit: records decisions, calls and administrative acts in chains that reveal tampering.

Nouns: *Entry* (something to record), *AuditLog* (buffers entries and stores them), *Chain* (the MAC
of each page covers the one before), *checkpoint* (length and last MAC of a chain, kept outside the
store), *anchor* (a row that stands for rows that retention removed), *Denials* (counts refusals),
*AuditFault* (the first bad row of a chain). Not logging, and not metrics.
"""
