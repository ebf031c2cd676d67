"""What XRT's headers use instead of libuuid (src/targets/npu/libuuid), beside Python's uuid."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

INCLUDE = Path(__file__).resolve().parents[2] / "src/targets/npu/libuuid"
pytestmark = [
    pytest.mark.skipif(not INCLUDE.is_dir(), reason="no C++ sources beside the tests"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="there is no c++"),
]

# Of each argument: its bytes, its text, whether it is null, and how it compares to the first one.
SOURCE = """
#include <cstdio>

#include "uuid/uuid.h"

int main(int count, char** texts) {
  uuid_t first;
  for (int i = 1; i < count; ++i) {
    uuid_t uuid, copy;
    uuid_clear(uuid);
    if (uuid_parse(texts[i], uuid) != 0) {
      std::printf("refused %d\\n", uuid_is_null(uuid));
      continue;
    }
    uuid_copy(copy, uuid);
    if (i == 1) uuid_copy(first, uuid);
    char text[37];
    uuid_unparse_lower(copy, text);
    for (const unsigned char byte : copy) std::printf("%02x", byte);
    const int order = uuid_compare(uuid, first);
    std::printf(" %s %d %d\\n", text, uuid_is_null(uuid), (order > 0) - (order < 0));
  }
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uuid")
    (folder / "main.cc").write_text(SOURCE)
    words = ["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}"]
    subprocess.run([*words, folder / "main.cc", "-o", folder / "main"], check=True)
    return folder / "main"


def lines(program: Path, *texts: str) -> list[str]:
    done = subprocess.run([program, *texts], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def test_a_uuid_is_read_written_and_compared(program: Path) -> None:
    known = uuid.UUID("5a1de09c-5c6e-4d5e-9d0b-6c1f4c8d2b37")
    larger, null = uuid.UUID(int=known.int + 1), uuid.UUID(int=0)
    assert lines(program, str(known).upper(), str(larger), str(null)) == [
        f"{known.hex} {known} 0 0",
        f"{larger.hex} {larger} 0 1",
        f"{null.hex} {null} 1 -1",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5a1de09c",
        "5a1de09c-5c6e-4d5e-9d0b-6c1f4c8d2b3",  # a digit short
        "5a1de09c-5c6e-4d5e-9d0b-6c1f4c8d2b377",  # one too many
        "5a1de09c-5c6e-4d5e-9d0b-6c1f4c8d2b3g",
        "5a1de09c5c6e-4d5e-9d0b-6c1f4c8d2b377",
    ],
)
def test_what_is_not_a_uuid_is_refused_and_nothing_written(program: Path, text: str) -> None:
    assert lines(program, text) == ["refused 1"]
