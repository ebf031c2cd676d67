"""The modelled NPU: words of a stream in, real bytes through the array, time from documented costs.

`session` runs a design's sequences. `device_process` is the device of the `sim` target, which
`__main__` starts. The simulator decodes streams by itself (`txn`), so that it can contradict the
code that wrote them.
"""
