"""The modelled NPU: words of a stream in, real bytes through the array, time from documented costs.

`session` runs a design's sequences. The simulator decodes streams by itself (`txn`), so that it can
contradict the code that wrote them. `ort_aie_ep.modelled_npu` is a device with it, for the target
`sim`.
"""
