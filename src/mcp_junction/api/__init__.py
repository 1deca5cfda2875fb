"""The REST API under ``/api/v1``: what administrators, orchestrators and programs talk to.

One file per resource (``servers``, ``tools``, ``calls``, ``policies``, ``skills``, ``state`` …).
Nouns: *RestFront* (bare ASGI: authenticates requests and passes them on), *ApiContext* (what the
handlers use), ``rights`` (which right a route needs), ``errors`` (which error becomes which
response), ``models`` and ``requests`` (response and request bodies). Only ``app``, ``routes`` and
the resources take a while to load, which is done before the service listens.
"""
