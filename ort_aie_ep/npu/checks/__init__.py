"""Does a design fit its device, and can it make progress? Rules, proofs, reasons and pictures.

`check` is the entry point. Nothing here has data or time: the simulator has both.
"""
