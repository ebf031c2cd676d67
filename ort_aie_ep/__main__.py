"""The command line, as `ort-aie` and as `python -m ort_aie_ep`.

Both start here, before anything from the extra [tools] is imported.
"""

from __future__ import annotations

import sys

from ort_aie_ep.errors import AieError
from ort_aie_ep.requirements import RUNTIME, TOOLS, require


def main() -> None:
    """Runs the command line, or reports what it needs installed."""
    try:
        # Commands that do not open models work without ONNX Runtime.
        require("ort-aie", [module for module in TOOLS if module != RUNTIME])
    except AieError as error:
        sys.exit(f"error: {error}")
    from ort_aie_ep.cli import main

    main()


if __name__ == "__main__":
    main()
