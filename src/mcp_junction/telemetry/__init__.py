"""What happened, told once: frozen event records, and sinks that are plain functions.

Nouns: *CallCompleted*, *ServerChanged*, *Sink*. Not logging of free text, and no sink here does I/O
on the path of a call.
"""
