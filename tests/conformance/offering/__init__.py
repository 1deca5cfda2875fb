"""What the conformance fixture offers: the names and texts that the official suite looks for.

*answers* builds results and questions; *tools* and *rounds* fill a *table* of tools each, *prompts*
and *resources* offer the rest; *levels* and *events* keep what a session set and what a stream
carried; *server* puts all of it on the SDK's low-level server, and *eras* makes that server refuse
one of the two protocol eras. Transports and the command line are in `../fixture.py`. Nothing here
knows about a gateway.
"""
