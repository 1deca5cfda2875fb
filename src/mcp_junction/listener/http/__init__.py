"""The HTTP listener: streamable HTTP for clients of the handshake era, as a bare ASGI app.

Nouns: *HttpListener* (the app), *EventStream* (events of one stream, kept for a while so that a
client can take it up again), *HttpReply* (the answer to one POST: JSON, or a stream when the call
speaks first), *Guard* (Host and Origin), *SessionRegistry* (who is known, until when).
"""
