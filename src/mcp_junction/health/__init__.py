"""Health: facts about servers, from checks and from traffic, and what follows from them.

``verdict.py`` is the rules (pure), ``checks.py`` the ways to check a server, ``probes.py`` the
schedule and the one place that is told. What to do about a verdict is its listener's business.
"""
