"""What happened, told once: frozen event records, and sinks that are plain functions.

And how things stand, as text for a monitor. Nouns: *ServerChanged*, *Sink*;
*Family*. Not logging of free text, and no sink here does I/O on the path of a call.
"""
