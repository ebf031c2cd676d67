"""Designs as MLIR in mlir-aie's aie dialect, the way to a real xclbin.

`module` prints a design from `configure()`, with everything that is assigned there, so that the
compiler chooses nothing but routes. `bodies` has the code of the workers, `sequences` a sequence
for one concrete shape, `text` MLIR's generic form. `toolchain` finds compilers; `report` compares
the printed module with the compiler's result. No Python of mlir-aie is used.

docs/npu-toolchain.md lists the real tools that have read this.
"""
