"""Governed calls at run time: what is stored about who may call what, and about failing servers.

Nouns: *Governance* (all parts, put together once), *ToolSettings* and *ToolFacts* (what is known
of a tool), *PolicySync* (keeps LivePolicy as the store has it), *PolicyAdministration* (changes
grants, agents and tokens), *ClaimGrants* (what access tokens give), *Approvals*, *Admission*
(high-risk calls), *CallLimits*, *SchemaCache*, *IdempotencyClaims*, *Circuits*, *Escalations*,
*Webhook*. The rules themselves are pure and live in ``policy/`` and ``resilience/``; the stages
that apply them to a call live in ``calls/stages/``. Calls are counted in ``calls/metrics.py``.
"""
