"""How tokens are chosen, as a GGUF file says: keys of general.sampling, which llama.cpp's converter
takes from the publisher's generation_config.json, else llama.cpp's defaults (common.h)."""

from __future__ import annotations

from ort_aie_ep.models.checked_json import Field

# The end of the key → its name in generation_config.json, and the default.
_KEYS = {
    "temp": ("temperature", 0.8),
    "top_k": ("top_k", 40),
    "top_p": ("top_p", 0.95),
    "min_p": ("min_p", 0.05),
    "penalty_repeat": ("repetition_penalty", 1.0),
}


def generation(metadata: Field) -> dict[str, bool | float]:
    """What generation_config.json would say.

    Raises:
        AieError: a key is not a number that can be.
    """
    said: dict[str, bool | float] = {}
    for key, (name, default) in _KEYS.items():
        given = metadata.find(f"general.sampling.{key}")
        if given is None:
            said[name] = default
        elif name == "top_k":
            said[name] = max(0, given.integer(-1, 1 << 31))  # -1, too, is all
        else:
            of = given.number(0) if name in ("temperature", "min_p") else given.positive()
            said[name] = float(f"{of:.6g}")  # the file has 32 bits of it
    return {"do_sample": said["temperature"] > 0, **said}
