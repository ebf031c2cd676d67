"""The configuration of an overlay as words, read and compared with what a design asks for.

`decode` reads the words that a tool wrote, `walk` follows streams through decoded switches, and
`compare` lists every difference between a configuration and its words.
"""
