"""The device of the target `sim`: a process that runs the simulator of `npu` on all designs."""
