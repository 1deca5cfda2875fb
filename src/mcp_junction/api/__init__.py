"""The REST API under ``/api/v1``: what administrators, orchestrators and programs talk to.

One file a resource (``servers``, ``tools``, ``calls``, ``events``, ``state``). Nouns: *Front* (who
may come in; bare ASGI, there from the beginning), *Room* (what the handlers work with), *access*
(the one table of who may do what), *errors* (the one table of what is answered when). The rest is
Litestar, which is loaded after the listener is up.
"""
