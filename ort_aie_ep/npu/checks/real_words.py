"""What mlir-aie says about a design that breaks a rule which it checks too.

The words are those of mlir-aie in August 2026. They connect its output with the rules here, in both
directions; `tests/npu/test_words_of_refusals.py` compares them with the real tool where it is
installed. Parts in braces are filled in. Each message stands under the file that it comes from.
"""

from __future__ import annotations

# lib/Dialect/AIE/IR/AIEDialect.cpp: DMABDOp::verify
LENGTH_MULTIPLE = "transfer length must be multiple of 4"
LENGTH_FIELD = (
    "buffer descriptor length ({words} 32-bit words) exceeds the maximum of {limit} words "
    "supported by this tile type"
)
DIMENSIONS = (
    "Cannot give more than {limit} dimensions for step sizes and wraps on this tile "
    "(got {count} dimensions)."
)
OUT_OF_BOUNDS = "Specified stride(s) and size(s) result in out of bounds access in buffer"
STEP_ZERO = "Invalid step size; must be a positive integer."
STEP_BEYOND = "Step size {step} exceeds memref size {elements}"
COUNT = "Size may not exceed 1023."  # of versions that refuse from 513 on
INNERMOST = "For <32b width datatypes, inner-most dim stride must be 1"
DESCRIPTOR_ADDRESS = "bd address must be 4 byte (32b) aligned"
OTHER_TILES_BUFFER = "Core tile DMAs can only access a buffer in the same tile."

# the same file: other verifiers
OTHER_TILES_LOCK = "can only access a lock in the same tile"  # UseLockOp
FAR_BUFFER = "is reachable from DMA channel {channel} and attempts to access a non-local buffer"
FAR_LOCK = "is reachable from DMA channel {channel} and attempts to access a non-local lock"
LOCK_ID = "lock assigned invalid id (maximum is {limit})"  # LockOp
INPUT_CHANNELS = "uses more input channels than available on this tile"  # HasValidDMAChannels
OUTPUT_CHANNELS = "uses more output channels than available on this tile"
BLOCKS = "has more than {limit} blocks"  # HasValidBDs
COLUMN = "column index ({index}) must be less than the number of columns in the device ({limit})"
ROW = "row index ({index}) must be less than the number of rows in the device ({limit})"
SECOND_CORE = "already has a core; each compute tile can host only one core"
UNREACHABLE = "is accessed from an unreachable tile in Column {column} and Row {row}"
STACK = "stack_size {bytes} leaves no local memory for this tile's buffers ({limit} bytes total)"

# lib/Dialect/AIE/Transforms/AIEAssignBuffers.cpp
MEMORY = "allocated buffers exceeded available memory"

# lib/Dialect/AIE/Transforms/AIEPathFinder.cpp and AIECreatePathFindFlows.cpp
ROUTING = "Unable to find a legal routing"
PACKET_ID = "packet id {id} exceeds the maximum of {limit}"
RULES = "slave port packet rules exceed the {limit}-slot limit"
SELECTIONS = "has used up all its msels"
