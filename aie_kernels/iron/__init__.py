"""Designs as IRON programs, the way to a real xclbin.

`program` makes the program of a design, `bodies` the code of its workers, `sequences` the host
side for one concrete shape; `interface` is the part of mlir-aie's Python that they use, `toolchain`
finds compilers, and `report` compares what was pinned with what the compiler made of it.

What is said of mlir-aie here was read in its sources (python/iron, python/helpers, python/utils;
file versions between 1.4.4.dev and 1.4.6.dev). Nothing of it has met the real toolchain:
docs/npu-toolchain.md says what that leaves open.
"""
