"""Stands for onnxruntime-genai's model builder: its functions, its arguments and what it prints.

It writes the folder that STANDIN_MODEL names, and says in STANDIN_SEEN what it was called with.
STANDIN_ACT makes it fail, or wait.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from transformers import AutoConfig


def get_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", "--model_name")
    for name in ("input", "output", "precision", "execution_provider", "cache_dir"):
        parser.add_argument(f"-{name[0]}", f"--{name}")
    parser.add_argument("--extra_options", nargs="+")
    return parser.parse_args()


def parse_extra_options(*arguments: Any) -> dict[str, Any]:
    return {"options": arguments[-1], "config": vars(AutoConfig.from_pretrained(arguments[1]))}


def create_model(
    _: None, source: str, to: str, precision: str, provider: str, cache: str, **prepared: Any
) -> None:
    files = sorted(path.name for path in Path(source).iterdir())
    tensors = {}
    for path in sorted(Path(source).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors |= {name: np.asarray(file.get_tensor(name)).tolist() for name in file.keys()}  # noqa: SIM118
    seen = {"source": source, "to": to, "precision": precision, "provider": provider,
            "cwd": str(Path.cwd()), "files": files, "tensors": tensors, **prepared,
            "offline": os.environ.get("HF_HUB_OFFLINE")}  # fmt: skip
    Path(os.environ["STANDIN_SEEN"]).write_text(json.dumps(seen))
    act = os.environ.get("STANDIN_ACT")
    print("Reading layer 0")
    if act == "fail":
        print("NotImplementedError: The model is not currently supported.", file=sys.stderr)
        sys.exit(3)
    if act == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if act == "wait":
        Path(os.environ["STANDIN_SEEN"]).with_suffix(".pid").write_text(str(os.getpid()))
        time.sleep(600)
    print("Reading layer 1")
    if act == "nothing":
        return
    print("complete quantization of /model/layers.0/mlp/down_proj/MatMul with 4 bits")
    shutil.copytree(os.environ["STANDIN_MODEL"], to)
    Path(cache).mkdir()
