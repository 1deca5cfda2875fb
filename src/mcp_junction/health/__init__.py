"""Health: probes servers, counts how their calls end, and decides whether they are healthy.

``verdict.py`` has the rules (pure); ``probes.py`` makes probes, classifies their results, runs them
on a schedule and reports changed verdicts to its listener, which acts.
"""
