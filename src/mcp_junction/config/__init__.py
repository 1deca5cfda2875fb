"""What the user wrote: the config file, its variables, and the settings around it.

Nouns: *Document* (JSON with comments, as values), *ServerDefinition* (one entry of ``mcpServers``,
checked and expanded), *Settings* (how Junction itself behaves), *Config* (all of it). Everything
here is immutable and pure but for reading the file; nothing is started.
"""
