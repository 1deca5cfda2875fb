"""The configuration: the config file, its variables, and the settings of the process.

Nouns: *document* (JSON with comments), *ServerDefinition* (one entry of ``mcpServers``,
checked and expanded), *Settings* (of Junction itself), *Config* (all of it). Everything
here is immutable, and nothing but reading the file has effects.
"""
