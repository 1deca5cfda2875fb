"""Health: probes servers, counts how their calls end, and decides whether they are healthy.

``verdict.py`` has the rules (pure), ``checks.py`` makes probes and classifies their results, and
``probes.py`` runs them on a schedule and reports changed verdicts to its listener, which acts.
"""
