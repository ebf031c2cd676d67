"""The configuration of an overlay as words: encoded, decoded, and compared both ways.

`encode` writes what `configure()` says, and the ports that `checks.ports` assigns, as the writes to
registers that configure the array. `decode` reads such words back with tables of its own; the two
share register offsets (`registers`) and no field of a word. `walk` follows streams through decoded
switches, and `compare` lists every way in which a configuration and its words differ.
"""
