"""Writes the files of a checkpoint with an adapter merged into their weights.

    PYTHON merge_adapter.py PLAN

PLAN is what `build.py` writes. PYTHON has torch and safetensors, but not this package.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def merged(weight: Any, a: Any, b: Any, merge: dict[str, Any], magnitude: Any) -> Any:
    """The weight with the change, in its own type: it is rounded once."""
    import torch

    change = (b.float() @ a.float()) * merge["scale"]
    result = weight.float() + (change.T if merge["transposed"] else change)
    if magnitude is not None:
        norms = torch.linalg.norm(result, dim=1)
        result = (magnitude.float() / norms)[:, None] * result
    result = result.to(weight.dtype).contiguous()
    if not torch.isfinite(result).all():
        sys.exit(f"{merge['tensor']} has values that are not finite after merging the adapter")
    return result


def main() -> None:
    """Carries out the plan named on the command line."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    plan = json.loads(Path(sys.argv[1]).read_text())
    with safe_open(plan["adapter"], "pt") as adapter:
        for shard in plan["shards"]:
            with safe_open(shard["source"], "pt") as file:
                metadata = file.metadata() or {"format": "pt"}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            # First, because peft may save the layer that a change is added to.
            for name, new in shard["replaced"].items():
                tensors[name] = adapter.get_tensor(new).to(tensors[name].dtype)
                print(f"Replaced {name}", flush=True)
            for merge in shard["merges"]:
                name, norms = merge["tensor"], merge["magnitude"]
                a, b = adapter.get_tensor(merge["a"]), adapter.get_tensor(merge["b"])
                magnitude = adapter.get_tensor(norms) if norms else None
                tensors[name] = merged(tensors[name], a, b, merge, magnitude)
                print(f"Merged {name}", flush=True)
            save_file(tensors, shard["destination"], metadata)


if __name__ == "__main__":
    main()
