"""Who may do what: pure functions from facts to decisions.

Nouns: *Principal* and *Role* (who calls, and the table of rights), *Quotas* (limits per principal),
*pinning* (when a tool is quarantined), *programs* and *outgoing* (what registered servers may run,
and where Junction may connect to).
"""
