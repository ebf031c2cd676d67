"""What differs between operating systems: names of libraries, locks of files, folders, CPUs.

Locks of files on Windows are made by LockFileEx on a byte that no file has, as in
`src/base/platform_windows.cc`, so that they keep nobody from reading. Windows cannot lock a folder,
and cannot rename one in which a file is open.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# How to open a file to read it, without waiting if it is a FIFO.
TO_READ = os.O_RDONLY
# How to make a new file to write.
TO_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL

if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    TO_READ |= os.O_BINARY | os.O_NOINHERIT
    TO_CREATE |= os.O_BINARY | os.O_NOINHERIT

    _FAIL_IMMEDIATELY, _EXCLUSIVE = 1, 2
    _LOCK_VIOLATION = 33
    _BEYOND_FILES = 1 << 30  # OffsetHigh: 2^62 bytes

    class _Overlapped(ctypes.Structure):
        _fields_ = (
            ("internal", ctypes.c_size_t),
            ("internal_high", ctypes.c_size_t),
            ("offset", wintypes.DWORD),
            ("offset_high", wintypes.DWORD),
            ("event", wintypes.HANDLE),
        )

    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _lock_file = _kernel32.LockFileEx
    _lock_file.argtypes = [
        wintypes.HANDLE, wintypes.DWORD, wintypes.DWORD, wintypes.DWORD, wintypes.DWORD,
        ctypes.POINTER(_Overlapped),
    ]  # fmt: skip

    def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> None:
        """Locks an open file until it is closed.

        Raises:
            BlockingIOError: another has it.
            OSError: the file system has no locks.
        """
        how = (0 if shared else _EXCLUSIVE) | (0 if wait else _FAIL_IMMEDIATELY)
        at = _Overlapped(offset_high=_BEYOND_FILES)
        if not _lock_file(msvcrt.get_osfhandle(descriptor), how, 0, 1, 0, ctypes.byref(at)):
            error = ctypes.WinError(ctypes.get_last_error())
            if error.winerror == _LOCK_VIOLATION:
                raise BlockingIOError(errno.EAGAIN, error.strerror) from error
            raise error

    @contextmanager
    def locked_folder(folder: Path, *, wait: bool = False) -> Iterator[None]:
        """Does nothing: Windows cannot lock a folder."""
        yield

else:
    import fcntl

    TO_READ |= os.O_CLOEXEC | os.O_NONBLOCK
    TO_CREATE |= os.O_CLOEXEC

    def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> None:
        """Locks an open file until it is closed.

        Raises:
            BlockingIOError: another has it.
            OSError: the file system has no locks.
        """
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, how | (0 if wait else fcntl.LOCK_NB))

    @contextmanager
    def locked_folder(folder: Path, *, wait: bool = False) -> Iterator[None]:
        """Locks a folder, where the file system has locks and no other process has this one."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with suppress(OSError):
                lock(descriptor, wait=wait)
            yield
        finally:
            os.close(descriptor)


def is_windows() -> bool:
    """Whether this is Windows, where only the host target exists."""
    return sys.platform == "win32"


def library_name(name: str) -> str:
    """The file of the library `name` of this package."""
    return f"{name}.dll" if is_windows() else f"lib{name}.so"


def cache_home() -> Path:
    """Where this user's programs keep what they can make again.

    $XDG_CACHE_HOME or ~/.cache; on Windows %LOCALAPPDATA%.

    Raises:
        RuntimeError: there is no home folder.
    """
    return _local_home() if is_windows() else _xdg_home("XDG_CACHE_HOME", ".cache")


def state_home() -> Path:
    """Where this user's programs keep what they remember between two runs.

    $XDG_STATE_HOME or ~/.local/state; on Windows %LOCALAPPDATA%.

    Raises:
        RuntimeError: there is no home folder.
    """
    return _local_home() if is_windows() else _xdg_home("XDG_STATE_HOME", ".local/state")


def _local_home() -> Path:
    local = os.environ.get("LOCALAPPDATA", "")
    return Path(local) if local else Path.home() / "AppData" / "Local"


def _xdg_home(variable: str, default: str) -> Path:
    home = os.environ.get(variable, "")
    # The specification says to ignore a path that is not absolute.
    return Path(home) if Path(home).is_absolute() else Path.home() / default


def usable_cpus() -> list[int]:
    """The logical CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def own_pages(size: int) -> bytearray | mmap.mmap:
    """Bytes that stay long, in pages of their own: among others that come and go, they would leave
    holes in the heap, which never goes back to the system."""
    if sys.platform == "win32":  # whose heap does so by itself
        return bytearray(size)
    # Populated, because pages that come one by one take longer than what is copied into them.
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)


def free_memory() -> int | None:
    """Bytes of memory that programs can still have; None if the system does not say."""
    if sys.platform == "win32":
        import ctypes

        # MEMORYSTATUSEX: two words of 32 bits, of which the first is the size, then seven of 64;
        # the second of those is the physical memory that is available.
        status = (ctypes.c_uint64 * 8)(64)
        told = ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        return status[2] if told else None
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((int(kilobytes) * 1024 for _, kilobytes, *_ in found), None)
