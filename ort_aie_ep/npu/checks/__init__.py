"""Does a design fit its device, and can it go on: every rule, proof and reason; and its pictures.

`check` is the door. Nothing here has data or time: that is the simulator's.
"""
