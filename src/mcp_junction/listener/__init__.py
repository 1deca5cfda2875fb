"""Downstream wires: they take frames from clients and bring answers back.

Nouns: *Dispatcher* (what each method of a client leads to), *StdioListener* (the pipes of stdio
mode), *ListenerHost* (what a listener needs of the rest).
"""
