"""Dataflow designs, a module each: `build(device, ...)` gives a `npu.vocabulary.design.Design`."""
