"""GGUF files, as llama.cpp and everybody who publishes for it write them, as compiled folders.

A file becomes the graph that onnxruntime-genai's model builder writes for its family
(`models.builder`), whose weights are made from the mapped file as they are packed; from there on it
is compiled as any other model. docs/gguf.md says what becomes of each type.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ort_aie_ep import machine
from ort_aie_ep.errors import AieError

# The .onnx file of a compiled folder.
MODEL = "model.onnx"
# Targets for which weights must be in forms that NPUs read, or need not.
TARGETS = {"host": False, "xrt": True, "sim": True}
_PART = re.compile(r"(?P<stem>.*)-\d{5}-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def for_npu() -> tuple[bool, str]:
    """Whether weights become what NPUs read, where no option says so; and why, in a few words."""
    target = os.environ.get("ORT_AIE_TARGET", "")
    if target in TARGETS:
        return TARGETS[target], f"ORT_AIE_TARGET is {target}"
    # What else an NPU needs takes longer to look for than opening a model.
    findings = machine.find_npu() if machine.npu_device() else (machine.Finding("NPU", ""),)
    lacks = machine.why_no_npu(findings)
    return not lacks, lacks or "an NPU works here"


def parts_of(path: Path) -> list[Path]:
    """The files that belong together by their names, in order; one for a file that is not split.

    Raises:
        AieError: a part is missing.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    names = [f"{match['stem']}-{i:05}-of-{match['count']}.gguf" for i in range(1, count + 1)]
    parts = [path.with_name(name) for name in names]
    missing = [part.name for part in parts if not part.is_file()]
    if missing or path not in parts:
        raise AieError(
            f"{path} is one of {count} parts, and {', '.join(missing[:3]) or 'none of them'} "
            f"is not beside it: put all parts into {path.parent}"
        )
    return parts
