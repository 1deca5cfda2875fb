"""Telemetry: the bus of numbered events, and metrics in the text format of Prometheus.

Nouns: *Bus*, *OutcomeName*, *MetricFamily*. Events inside the process are ``calls/events.py`` and
``upstream/events.py``. Not logging of free text, and nothing here does I/O on the path of a call.
"""
