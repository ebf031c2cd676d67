"""Designs as MLIR in mlir-aie's aie dialect, the way to a real xclbin.

`module` prints a design from `configure()`: everything that is assigned there is said, so that the
compiler has nothing left to choose but routes. `bodies` has the code of the workers, `sequences` a
sequence for one concrete shape, `text` MLIR's generic form. `toolchain` finds compilers, `report`
compares what was printed with what the compiler made of it. No Python of mlir-aie is used.

docs/npu-toolchain.md says what this was held against.
"""
