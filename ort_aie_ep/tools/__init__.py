"""Tools for those who develop or measure: `bench` (speed, accuracy, other engines) and `synth`.

What an application uses does not import from here; the command line does.
"""
