"""Compares the stand-in for AMX with the instructions as Bochs 3.0 executes them, without an OS.

    sudo apt install g++ isolinux syslinux-common xorriso debootstrap
    sudo python scripts/check_amx_in_bochs.py [--root FOLDER]

Debian 13 (trixie) has Bochs 3.0 with AMX. If the root does not exist, the script makes it with
debootstrap (300 MB). Bochs 3.1 is not usable: its 64-bit division gives wrong results. The check
takes 2 minutes.
"""

from __future__ import annotations

import argparse
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "amx_in_bochs"
REPOSITORY = SOURCES.parents[1]
LIMIT = 1200  # seconds; Bochs executes about 50 million instructions per second

FLAGS = ["-O2", "-std=c++20", "-ffreestanding", "-fno-exceptions", "-fno-rtti", "-mno-red-zone"]
FLAGS += ["-fno-pic", "-fno-pie", "-fno-stack-protector", "-fno-tree-loop-distribute-patterns"]
FLAGS += ["-U_FORTIFY_SOURCE", "-include", "initializer_list"]
AMX = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16", "-mfma"]
AMX += ["-mamx-tile", "-mamx-bf16"]

BOCHSRC = """\
plugin_ctrl: unmapped=1, biosdev=1, serial=1
config_interface: textconfig
display_library: term
cpu: model=sapphire_rapids, count=1, ips=100000000, reset_on_triple_fault=0
memory: guest=64, host=64
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/vgabios/vgabios.bin
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=/check/boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=/check/serial.txt
clock: sync=none, time0=local
log: /check/bochs.log
panic: action=fatal
"""


def build(folder: Path) -> Path:
    """Compiles the program and returns a CD that starts it."""
    objects = []
    for source in sorted(SOURCES.glob("*.cc")):
        objects.append(folder / f"{source.stem}.o")
        flags = [*FLAGS, *(AMX if source.stem == "with_amx" else [])]
        run("g++", *flags, f"-I{REPOSITORY / 'src'}", "-c", source, "-o", objects[-1])
    run("gcc", "-c", SOURCES / "boot.S", "-o", folder / "boot.o")
    elf64, elf32 = folder / "check.elf64", folder / "iso/isolinux/check"
    elf32.parent.mkdir(parents=True)
    script = SOURCES / "link.ld"
    run("ld", "--no-warn-rwx-segments", "-T", script, "-o", elf64, folder / "boot.o", *objects)
    run("objcopy", "-O", "elf32-i386", elf64, elf32)
    shutil.copy("/usr/lib/ISOLINUX/isolinux.bin", elf32.parent)
    for module in ("ldlinux", "mboot", "libcom32"):
        shutil.copy(f"/usr/lib/syslinux/modules/bios/{module}.c32", elf32.parent)
    config = "DEFAULT check\nPROMPT 0\nLABEL check\n KERNEL mboot.c32\n APPEND check\n"
    (elf32.parent / "isolinux.cfg").write_text(config)
    boot = ["-b", "isolinux/isolinux.bin", "-c", "isolinux/boot.cat"]
    boot += ["-no-emul-boot", "-boot-load-size", "4"]
    cd = folder / "boot.iso"
    quietly = ["xorriso", "-as", "mkisofs", "-quiet", "-boot-info-table"]
    run(*quietly, "-o", cd, *boot, folder / "iso")
    return cd


def run(*command: str | Path) -> None:
    """Runs a command; exits if it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {command[0]} failed:\n{done.stderr}")


def make_root(root: Path) -> None:
    """Makes a Debian 13 with Bochs in `root`, unless it exists."""
    if (root / "usr/bin/bochs-bin").exists():
        return
    print(f"making {root}: Debian 13 with Bochs", flush=True)
    packages = "--include=bochs,bochs-term,bochsbios,vgabios"
    run(
        "debootstrap", "--variant=minbase", packages, "trixie", root, "http://deb.debian.org/debian"
    )


def start(root: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Starts Bochs on its own terminal, which every display needs; returns the other end too."""
    ours, its = pty.openpty()
    command = ["chroot", str(root), "/usr/bin/bochs-bin", "-q", "-f", "/check/bochsrc"]
    process = subprocess.Popen(
        command,
        stdin=its,
        stdout=its,
        stderr=its,
        env={
            "TERM": "xterm",
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LINES": "60",
            "COLUMNS": "200",
        },
    )
    os.close(its)
    os.set_blocking(ours, False)
    return process, ours


def main() -> None:
    """Builds and starts the check, and prints the output of the serial port."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path("build/bochs-root"))
    root = parser.parse_args().root.resolve()
    root.parent.mkdir(parents=True, exist_ok=True)
    make_root(root)
    check = root / "check"
    shutil.rmtree(check, ignore_errors=True)
    check.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(build(Path(folder)), check / "boot.iso")
    (check / "bochsrc").write_text(BOCHSRC)
    serial = check / "serial.txt"
    process, terminal = start(root)
    text = ""
    try:
        for _ in range(LIMIT):
            time.sleep(1)
            drain(terminal)
            now = serial.read_text(errors="replace") if serial.exists() else ""
            print(now[len(text) :], end="", flush=True)
            text = now
            if "ended" in text or "aborted" in text or process.poll() is not None:
                break
    finally:
        process.kill()
        process.wait()
    if "the stand-in is right" not in text:
        sys.exit(f"error: see {serial} and {check / 'bochs.log'}")


def drain(terminal: int) -> None:
    """Discards what Bochs draws, so that it never waits for a reader."""
    try:
        while os.read(terminal, 1 << 16):
            pass
    except OSError:  # no output yet, or Bochs has ended
        pass


if __name__ == "__main__":
    main()
