"""A module as aiecc prints it: the parts of `input_with_addresses.mlir` that `report` reads.

The form is that of aie-opt 7e00b579; `test_real_tools` tests `report` with the tool itself.
"""

from __future__ import annotations

from generic_form import Operation, read

DIRECTIONS = {0: "S2MM", 1: "MM2S"}


def printed(text: str) -> str:
    """The operations of a printed module that `report` examines."""
    lines: list[str] = []
    for op in read(text).walk():
        lines += _lines(op)
    return "\n".join(lines) + "\n"


def _lines(op: Operation) -> list[str]:
    a = op.attributes
    tile = op.operands[0] if op.operands else ""
    match op.name:
        case "aie.tile":
            return [f"{op.result} = aie.tile({a['col']}, {a['row']}) {{}}"]
        case "aie.lock":
            own = f'init = {a["init"]} : i32, sym_name = "{a["sym_name"]}"'
            return [f"{op.result} = aie.lock({tile}, {a['lockID']}) {{{own}}}"]
        case "aie.buffer":
            place = f"address = {a['address']} : i32, mem_bank = {a['mem_bank']} : i32"
            type = op.type.split("-> ")[1]
            name = f'sym_name = "{a["sym_name"]}"'
            return [f"{op.result} = aie.buffer({tile}) {{{place}, {name}}} : {type} "]
        case "aie.dma_bd" if "bd_id" in a:
            sizes = "".join(
                f" {key} = {a[f'static_{key}']}"
                for key in ("sizes", "strides")
                if f"static_{key}" in a
            )
            type = op.type.split(") -> ")[0].removeprefix("(")
            what = f"{tile} : {type} offset = {a['static_offset']} len = {a['static_len']}{sizes}"
            return [f"aie.dma_bd({what}) {{bd_id = {a['bd_id']} : i32, next_bd_id = 0 : i32}}"]
        case "aie.flow":
            ends = (
                f"{tile}, DMA : {a['source_channel']}",
                f"{op.operands[1]}, DMA : {a['dest_channel']}",
            )
            return [f"aie.flow({', '.join(ends)})"]
        case "aie.packet_flow":
            ends = [
                f"  {end.name}<{end.operands[0]}, DMA : {end.attributes['channel']}>"
                for end in op.regions[0][0].operations[:-1]
            ]
            return [f"aie.packet_flow({a['ID']}) {{", *ends, "}"]
        case "aie.shim_dma_allocation":
            port = f"{DIRECTIONS[a['channel_dir']]}, {a['channel_index']}"
            return [f"aie.shim_dma_allocation @{a['sym_name']}({tile}, {port})"]
        case "aie.core":
            stack = f"stack_size = {a['stack_size']} : i32"
            return [
                f"    {op.result} = aie.core({tile}) {{",
                "      aie.end",
                f"    }} {{{stack}}}",
            ]
    return []
