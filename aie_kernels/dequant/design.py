"""Q4NX -> bf16, in the order that GEMM reads (paper 2, section 3.1.1).

README.md has dataflow, rules and what bounds it.
"""

from __future__ import annotations

from ort_aie_ep.aie_kernels.cycles import form_scalars
from ort_aie_ep.aie_kernels.dequant.kernels import q4nx_dequant
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.terms.design import Acquire, Body, Core, Design, Parameters, Release, call
from ort_aie_ep.npu.terms.device import Device
from ort_aie_ep.npu.terms.kernel import Array, Kernel
from ort_aie_ep.npu.terms.sequence import at_most, ceil_div, less, minimum

WEIGHTS = 8192  # of a block
CORES = 4  # of a column
STACK = 2048  # bytes; AMD's for its dequantisation, which was measured to use 1,216


def build(device: Device, form: BlockForm = SHIPPING) -> Design:
    """Dequantisation on all columns of `device`.

    One sequence, `dequant(blocks)`: w Q4NX (blocks, block bytes of `form`) uint8 in, b (blocks,
    8192) bf16 out. The sequence refuses fewer than 4 blocks.
    """
    return make(Design("dequant", device, form), q4nx_dequant(form))


def make(design: Design, kernel: Kernel) -> Design:
    """The design whose cores call `kernel` for each block of its form."""
    for c in range(design.device.columns):
        _place(design, kernel, c)
    _add_sequence(design, kernel)
    return design


def _output(kernel: Kernel) -> Array:
    """What the kernel makes of a block."""
    out = kernel.arguments[1]
    assert isinstance(out, Array)
    return out


def _place(design: Design, kernel: Kernel, c: int) -> None:
    block, result = design.form.block_bytes, _output(kernel)
    blocks = design.fifo(f"w{c}", "u8", CORES * block, design.shim(c), design.mem(c))
    own = [
        design.fifo(f"w{c}_{r}", "u8", block, design.mem(c), design.core(c, r))
        for r in range(CORES)
    ]
    design.split(blocks, own)
    for half in range(2):
        outputs = []
        for r in (2 * half, 2 * half + 1):
            out = design.fifo(
                f"b{c}_{r}", result.element, result.count, design.core(c, r), design.mem(c)
            )
            outputs.append(out)
            design.worker(
                f"dequant{c}_{r}", design.core(c, r), _body(kernel, design.form),
                inputs={"w": own[r]}, outputs={"b": out}, parameters=["blocks"],
                kernels=[kernel], stack=STACK,
            )  # fmt: skip
        pair = design.fifo(
            f"b{c}_pair{half}", result.element, 2 * result.count, design.mem(c),
            design.shim(c, half),
        )  # fmt: skip
        design.join(outputs, pair)


def _body(kernel: Kernel, form: BlockForm) -> Body:
    scalars = form_scalars(form)

    def body(core: Core):  # type: ignore[no-untyped-def]
        (blocks,) = yield Parameters()
        for _ in core.loop(blocks):
            w = yield Acquire("w")
            b = yield Acquire("b")
            yield call(kernel, w, b, *scalars)
            yield Release("w")
            yield Release("b")

    return body


def _add_sequence(design: Design, kernel: Kernel) -> None:
    block, out = design.form.block_bytes, _output(kernel).bytes
    s = design.sequence("dequant", "blocks")
    (blocks,) = s.symbols()
    s.require(at_most(CORES, blocks), "{blocks} Q4NX blocks; at least 4 are needed: pad N")
    w = s.argument("w", "in", blocks * block)
    b = s.argument("b", "out", blocks * out)

    columns = range(design.device.columns)
    # An object is 4 blocks; the last one is moved back to end with the last block.
    objects = s.let("objects", ceil_div(blocks, CORES))
    share = s.let("share", ceil_div(objects, len(columns)))
    firsts = [s.let(f"first{c}", minimum(share * c, objects - share)) for c in columns]
    wholes = [s.let(f"whole{c}", minimum(share, blocks // CORES - firsts[c])) for c in columns]
    for c in columns:
        s.transfer(f"w{c}", w, offset=firsts[c] * (CORES * block), run=wholes[c] * (CORES * block))
        with s.when(less(wholes[c], share)):
            s.transfer(f"w{c}", w, offset=(blocks - CORES) * block, run=CORES * block)
    for name in design.workers:
        s.start(name, share)
    for c in columns:
        for half in range(2):
            fifo, pair = f"b{c}_pair{half}", 2 * out
            s.transfer(
                fifo, b, offset=firsts[c] * (2 * pair) + half * pair, run=pair,
                outer=[(wholes[c], 2 * pair)],
            )  # fmt: skip
            with s.when(less(wholes[c], share)):
                s.transfer(fifo, b, offset=(blocks - CORES) * out + half * pair, run=pair)
    s.work(share * int(kernel.cycles(design.device.architecture, ())))
    s.wait(*(f"b{c}_pair{half}" for c in columns for half in range(2)))
    s.cut()
