"""A wheel for Windows, of this Python, on Windows: python build_windows_wheel.py [--out dist].

The compiler is PyPI's ziglang, with the toolchain file of `make windows`. ONNX Runtime's C headers
come from ORT_AIE_ONNXRUNTIME_INCLUDE_DIR.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
import zipfile
from pathlib import Path

from manylinux import CannotBuild, run

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "build/windows-wheel"

# What a wheel must have, and a text in it.
CONTENTS = {
    "ort_aie_ep/ort_aie_ep.dll": b"AieExecutionProvider",  # headers of ONNX Runtime 1.24 or newer
    "ort_aie_ep/ort_aie_ep_stub.dll": b"RegisterCustomOps",
    "ort_aie_ep/_native": b"PyInit__native",
    "ort_aie_ep/_npu": b"PyInit__npu",
    "ort_aie_ep/demo_model/model.onnx": b"",
}


def build(out: Path) -> Path:
    """The wheel, in `out`. Raises CannotBuild."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (ziglang,) = (
        name
        for name in extras["project"]["optional-dependencies"]["windows"]
        if name.startswith("ziglang")
    )
    pip = (sys.executable, "-m", "pip")
    run(*pip, "install", "--quiet", "--upgrade", "--target", TOOLS, ziglang)
    settings = {
        "cmake.define.CMAKE_TOOLCHAIN_FILE": (ROOT / "cmake/windows-zig.cmake").as_posix(),
        "cmake.define.ORT_AIE_ZIG": (TOOLS / "ziglang/zig.exe").as_posix(),
        "cmake.args": "-GNinja",
    }
    given = (word for item in settings.items() for word in ("--config-settings", "=".join(item)))
    for earlier in out.glob("ort_aie_ep-*-win_amd64.whl"):
        earlier.unlink()
    run(*pip, "wheel", "--no-deps", *given, "--wheel-dir", out, ROOT)
    (wheel,) = out.glob("ort_aie_ep-*-win_amd64.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Raises CannotBuild if a library is missing, or was built without a part."""
    with zipfile.ZipFile(wheel) as archive:
        for start, text in CONTENTS.items():
            files = [name for name in archive.namelist() if name.startswith(start)]
            if not any(text in archive.read(name) for name in files):
                raise CannotBuild(f"{wheel.name} has no {start} with {text.decode()!r}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the wheel goes")
    out = parser.parse_args().out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    try:
        wheel = build(out)
        check_contents(wheel)
    except CannotBuild as error:
        sys.exit(f"error: {error}")
    print(wheel)


if __name__ == "__main__":
    main()
