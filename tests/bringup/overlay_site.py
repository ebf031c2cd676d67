"""Design packages with made-up overlays, and the designs that their UUIDs stand for."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ort_aie_ep.aie_kernels.build import make_design
from ort_aie_ep.bringup import bench, constants, data_path
from ort_aie_ep.bringup.first_token import Token
from ort_aie_ep.npu.packages.package import KERNEL, manifest, write_package
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import device

TOKEN = Token(
    tokens=16, same=16, near_tie=False, largest_difference=0.1, largest_logit=12.0,
    milliseconds=12.5, host_milliseconds=3.25, submissions=1.0, host_steps={},
)  # fmt: skip
TOOLS = {"mlir_aie": "1.4.4", "peano": "19.0"}


@dataclass
class Site:
    """A folder of packages, and the designs by kernel that the recorder finds under their UUIDs."""

    folder: Path
    designs: dict[str, dict[str, Design]] = field(default_factory=dict)

    def add(self, name: str, on: str = "npu2_2col") -> Path:
        (folder,) = self.add_together([name], on, kernel=KERNEL)
        return folder

    def add_together(
        self, names: Sequence[str], on: str = "npu2_2col", kernel: str = ""
    ) -> list[Path]:
        """Packages that share one xclbin, with kernels of their names."""
        made = {kernel or name: make_design(name, device(on)) for name in names}
        its = uuid.UUID(int=len(self.designs) + 1)
        xclbin = self.folder / "aie.xclbin"
        # The head of an axlf: magic, and the UUID at byte 416 (xclbin.h).
        xclbin.write_bytes(b"xclbin2\0" + bytes(408) + its.bytes + bytes(64))
        self.designs[str(its)] = made
        return [
            write_package(
                self.folder / "overlays" / f"{design.package}_{on}",
                manifest(design, toolchain=TOOLS, uuid=str(its), kernel=name), xclbin,
            ).folder
            for name, design in made.items()
        ]  # fmt: skip


def shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator's clock is exact, so differences need not be large. 400 writes are 40,000
    cycles, more than an object needs."""
    monkeypatch.setattr(bench, "FEW", 20)
    monkeypatch.setattr(bench, "MANY", 400)
    for quick in ("", "QUICK_"):
        monkeypatch.setattr(data_path, f"{quick}OBJECTS", (8, 24))
        monkeypatch.setattr(data_path, f"{quick}SMALL_OBJECTS", (8, 40))
        monkeypatch.setattr(data_path, f"{quick}COPIES", 2)
        monkeypatch.setattr(constants, f"{quick}REPETITIONS", 3)
