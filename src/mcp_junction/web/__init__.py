"""A small framework for REST: typed handlers on bare ASGI, and OpenAPI from their signatures.

It knows nothing of Junction but the error that a request ends in. Nouns: *Operation* (one method of
one path: its handler and what is said of it), *Router* (operations under a path), *WebApp* (routes
requests to operations), *Request*, *Response*.
"""
