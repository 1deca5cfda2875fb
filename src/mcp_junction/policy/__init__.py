"""Who may do what: pure functions from facts to decisions, with the clock passed in.

Nouns: *Principal* and *Role* (who calls, and the table of rights), *ActingAgent* (whose grants
decide), *Grant* and *GrantSet* (what an agent may call), *Risk*, *Token*, *PolicyDecision*,
*LivePolicy* (the policy as it is now), *Arguments* (read in one way only), *VersionRange*,
*Quotas* (limits per principal), *pinning* (when a tool is quarantined), *programs* and *outgoing*
(what registered servers may run, and where Junction may connect to).
"""
