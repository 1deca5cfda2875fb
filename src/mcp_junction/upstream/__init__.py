"""The servers behind us: one Link per connection, one owner task per server.

Nouns: *Upstream* (a server and its lifecycle), *Link* (one connection to it), *Flight* (one attempt
of a call on a link), *Outcome* (how it ended), *Warden* (the small process that is the parent of
all stdio servers and ends their process trees). Nothing here knows clients or tool names.
"""
