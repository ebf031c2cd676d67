"""Signatures of mlir-aie's Python interface, generation C, as the recorder enforces them.

Each is a fact about that library in neutral words: parameters, defaults, which are keyword-only,
and the file it was read in. Where file versions between 1.4.4.dev and 1.4.6.dev differ, the
narrower form stands here (keyword-only where any of them has it), so that what passes fits all.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple


class Fact(NamedTuple):
    parameters: str
    source: str


OBJECTFIFO = "mlir-aie python/iron/dataflow/objectfifo.py, 1.4.5.dev"
RUNTIME = "mlir-aie python/iron/runtime/runtime.py, 1.4.5.dev"

SIGNATURES: dict[str, Fact] = {
    "ObjectFifo": Fact(
        "obj_type, *, depth=2, name=None, to_stream=None, from_stream_per_cons=None, plio=False, "
        "pad_value=0, disable_synchronization=False, repeat_count=None, delegate_tile=None, "
        "via_DMA=False, init_values=None, consumer_obj_type=None, aie_stream=None, packet=False, "
        "packet_id=None",
        OBJECTFIFO,
    ),
    "ObjectFifo.prod": Fact("depth=None, channel=None, tile=None", OBJECTFIFO),
    "ObjectFifo.cons": Fact("depth=None, from_stream=None, channel=None, tile=None", OBJECTFIFO),
    "ObjectFifoHandle.acquire": Fact("num_elem", OBJECTFIFO),
    "ObjectFifoHandle.release": Fact("num_elem", OBJECTFIFO),
    "ObjectFifoHandle.fill": Fact(
        "source, tap=None, *, wait=False, packet=None, offset_parameter=None, group=None, "
        "managed=True, length_parameter=None, length_unit=None",
        OBJECTFIFO,
    ),
    "ObjectFifoHandle.drain": Fact(
        "dest, tap=None, *, wait=False, packet=None, offset_parameter=None, group=None, "
        "managed=True, length_parameter=None, length_unit=None",
        OBJECTFIFO,
    ),
    "ObjectFifoLink": Fact(
        "srcs, dsts, tile=None, src_offsets=None, dst_offsets=None",
        OBJECTFIFO + "; used as here by amd/IRON's flm operators, from aie.iron.dataflow",
    ),
    "Worker": Fact(
        "core_fn, fn_args=None, *, tile=None, while_true=True, stack_size=None, "
        "program_memory_reserved=None, allocation_scheme=None, trace=None, trace_events=None, "
        "dynamic_objfifo_lowering=None",
        "mlir-aie python/iron/worker.py, 1.4.5.dev",
    ),
    "Kernel": Fact(
        "name, object_file_name, arg_types=None, /",
        "mlir-aie python/iron/kernel.py, 1.4.4.dev; the second is bin_name in some, so by position",
    ),
    "Buffer": Fact(
        "type=None, initial_value=None, name=None, tile=None, use_write_rtp=False, address=None, "
        "mem_bank=None",
        "mlir-aie python/iron/buffer.py, 1.4.5.dev",
    ),
    "Lock": Fact(
        "tile, lock_id=None, init=0, name=None", "mlir-aie python/iron/lock.py, 1.4.6.dev"
    ),
    "Lock.acquire": Fact("value=1", "mlir-aie python/iron/lock.py: greater or equal, taken off"),
    "Lock.release": Fact("value=1", "mlir-aie python/iron/lock.py"),
    "Lock.set": Fact("value", "mlir-aie python/iron/lock.py: from a runtime sequence"),
    "Runtime": Fact(
        "seq_fn, fn_args=None, *, name=None, strict_task_groups=True, implicit_configure=True",
        RUNTIME,
    ),
    "TaskGroup": Fact("id=None", "mlir-aie python/iron/runtime/taskgroup.py, 1.4.5.dev"),
    "TaskGroup.finish": Fact("", "mlir-aie python/iron/runtime/taskgroup.py, 1.4.5.dev"),
    "Program": Fact("device, rt, *, workers=None", "mlir-aie docs of 1.4.4: program.py"),
    "Program.resolve_program": Fact("device_name='main'", "mlir-aie docs of 1.4.4: program.py"),
    "Tile": Fact(
        "col=None, row=None, *, tile_type=None", "mlir-aie python/iron/device/tile.py, 1.4.5.dev"
    ),
    "TensorAccessPattern": Fact(
        "tensor_dims, offset, sizes, strides",
        "mlir-aie python/helpers/taplib/tap.py, 1.4.5.dev (a fifth, padding, is newer)",
    ),
    "range_": Fact(
        "start, stop=None, step=None, *, iter_args=None, insert_yield=True",
        "mlir-aie python/iron/controlflow.py, python/helpers/dialects/scf.py, 1.4.5.dev",
    ),
    "index_cast": Fact("value, *, to", "aie.extras.dialects.arith, as in mlir-aie's scf.py"),
}


def signature(name: str) -> inspect.Signature:
    """The signature of `name`, without `self`."""
    made: Any = eval(f"lambda {SIGNATURES[name].parameters}: None")
    return inspect.signature(made)


def bind(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, defaults filled in. TypeError for what the signature does not have."""
    bound = signature(name).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)
