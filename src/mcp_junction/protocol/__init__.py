"""The wire, without any I/O: frames, the one decoder and the one encoder, names, merged lists.

Nouns: *Frame* (an envelope with raw payloads), *LineReader* (bytes to lines, bounded), *Spelling*
(how a pair of server and tool is written for one kind of client), *Page* (a slice of a merged
list). Only the standard library and msgspec are imported here, and nothing of ours but ``errors``.
"""
