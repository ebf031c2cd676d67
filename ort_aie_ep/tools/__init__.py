"""Tools for development and measurement: `bench` (speed, accuracy, other engines) and `synth`.

The command line imports from here; code for applications does not.
"""
