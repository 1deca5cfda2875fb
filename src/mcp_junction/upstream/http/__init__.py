"""Remote servers: streamable HTTP, and the older HTTP with server-sent events.

Nouns: *Connection* (one HTTP/1.1 connection), *Pool* (the connections to one origin), *HttpLink*,
*SseLink*. The HTTP client is our own, on httptools: an exchange costs a fifth of what a general
client takes, and it knows exactly whether a byte of a request was handed to the transport.
"""
