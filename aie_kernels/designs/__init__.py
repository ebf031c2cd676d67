"""Dataflow designs, a module each: `build(device, ...)` gives an `ort_aie_ep.npu.design.Design`."""
