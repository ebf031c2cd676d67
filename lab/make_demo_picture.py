"""Record `ort-aie demo` as an animated picture: make_demo_picture.py docs/demo.svg.

Runs the command of this Python's environment once. The run printed every line of the picture, in
these colours. A line appears when the run printed it, or a little later if many came at once. A
viewer without animations shows the end.
"""

from __future__ import annotations

import datetime
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS, ROWS = 96, 36
# The least time between two lines, and the time before the picture begins again, in seconds.
PACE, HOLD = 0.07, 12.0
# Of Console.export_svg, whose text has 20 pixels.
COLUMN, ROW, EDGE, TITLE = 12.2, 24.4, 12, 40

PICTURE = """<svg xmlns="http://www.w3.org/2000/svg" role="img"
 width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">
<title>{title}</title>
<style>
.text {{ font: 20px Consolas, Menlo, "DejaVu Sans Mono", monospace; white-space: pre; }}
.title {{ font: bold 18px sans-serif; }}
{styles}
@media (prefers-reduced-motion: no-preference) {{
{animations}
}}
</style>
<clipPath id="window"><rect width="{width:.0f}" height="{window:.1f}"/></clipPath>
<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="#0c0c0c"/>
<circle cx="24" cy="22" r="7" fill="#ff5f57"/>
<circle cx="46" cy="22" r="7" fill="#febc2e"/>
<circle cx="68" cy="22" r="7" fill="#28c840"/>
<text x="{middle:.0f}" y="28" class="title" text-anchor="middle" fill="#d9d9d9">{title}</text>
<g transform="translate({edge}, {top})"><g clip-path="url(#window)">
<g class="scroll text" style="transform: translateY({scrolled:.1f}px)">
{lines}
</g></g></g>
</svg>
"""


def record(command: list[str]) -> list[tuple[float, str]]:
    """(seconds since the start, line) for each line that a command prints, with its colours."""
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
    }
    printed = []
    # Notes and progress bars go to stderr; only the text that remains of them matters.
    with tempfile.TemporaryFile("w+") as notes:
        start = time.monotonic()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=notes, text=True, env=environment
        ) as run:
            assert run.stdout is not None
            printed = [(time.monotonic() - start, line.rstrip("\n")) for line in run.stdout]
        end = time.monotonic() - start
        notes.seek(0)
        # A bar moves the cursor; the text after the last such move stays.
        left = re.split(r"\x1b\[(?:\d*[AK]|\?25[hl])", notes.read())[-1]
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{left}")
    return printed + [(end, line) for line in left.strip("\r\n").split("\n")]


def picture(title: str, printed: list[tuple[float, str]]) -> str:
    """The animated picture of lines."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), highlight=False)
    times: list[float] = []
    for at, line in printed:
        rows = Text.from_ansi(line).wrap(console, COLUMNS)
        for row in rows:
            console.print(row, soft_wrap=True)
            times.append(max(at, times[-1] + PACE if times else 0.0))
    form = "{styles}\0{matrix}"
    styles, matrix = console.export_svg(theme=MONOKAI, code_format=form, unique_id="t").split("\0")
    length = times[-1] + HOLD
    lines, animations = [], []
    scrolls = ["0% { transform: translateY(0) }"]
    for row, at in enumerate(times):
        texts = re.findall(rf'<text [^>]*url\(#t-line-{row}\)">.*?</text>', matrix, re.S)
        begin = f"{100 * at / length:.2f}%"
        plain = (re.sub(r' clip-path="[^"]*"', "", text) for text in texts)
        lines.append(f'<g class="l{row}">{"".join(plain)}</g>')
        hidden, visible = "0% { visibility: hidden }", "100% { visibility: visible }"
        animations += [
            f"@keyframes l{row} {{ {hidden} {begin}, {visible} }}",
            f".l{row} {{ animation: l{row} {length:.2f}s step-end infinite }}",
        ]
        if row >= ROWS:
            scrolls.append(f"{begin} {{ transform: translateY({(ROWS - row - 1) * ROW:.1f}px) }}")
    last = f"translateY({min(0, ROWS - len(times)) * ROW:.1f}px)"
    scrolls.append(f"100% {{ transform: {last} }}")
    animations.append(f"@keyframes scroll {{ {' '.join(scrolls)} }}")
    animations.append(f".scroll {{ animation: scroll {length:.2f}s step-end infinite }}")
    width, window = COLUMNS * COLUMN + 2 * EDGE, ROWS * ROW + 4
    return PICTURE.format(
        width=width,
        middle=width / 2,
        height=window + TITLE + EDGE,
        window=window,
        top=TITLE,
        edge=EDGE,
        title=escape(title),
        styles=styles,
        animations="\n".join(animations),
        scrolled=min(0, ROWS - len(times)) * ROW,
        lines="\n".join(lines),
    )


def main() -> None:
    """Runs the demonstration and writes the picture."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    command = [str(Path(sys.executable).with_name("ort-aie")), "demo"]
    printed = [(0.0, "\x1b[1m$ ort-aie demo\x1b[0m"), (0.0, ""), *record(command)]
    title = f"ort-aie demo, {datetime.date.today().isoformat()}"
    Path(sys.argv[1]).write_text(picture(title, printed))


if __name__ == "__main__":
    main()
