"""The configuration of an overlay as words: encoded, decoded, and compared both ways.

`encode` writes the configuration of `configure()`, with the ports that `checks.ports` assigns, as
the register writes that configure the array. `decode` reads such words back with its own tables.
The two share register offsets (`registers`) but no field of a word. `walk` follows streams through
decoded switches, and `compare` lists every difference between a configuration and its words.
"""
