"""Runs onnxruntime-genai's model builder, whose arguments follow on the command line.

    PYTHON run_builder.py -i CHECKPOINT -o MODEL -p int4 -e cpu ...

The builder reads config.json through `AutoConfig` of transformers. Here it also gets the fields
that newer versions of transformers no longer have and the builder still reads; the model, which
transformers opens by itself, does not see them. PYTHON has the builder, but not this package.
"""

from __future__ import annotations

from typing import Any

import transformers


def adapted(config: Any) -> Any:
    """The configuration with what the builder expects of it."""
    for part in (config, getattr(config, "text_config", config)):
        rope = getattr(part, "rope_parameters", None) or {}
        # Gemma 3: transformers 5 keeps both rotary embeddings in one dictionary, while the builder
        # (0.18) reads the global one there, and the local one's base from a field.
        if getattr(part, "model_type", "") == "gemma3_text" and "full_attention" in rope:
            part.rope_local_base_freq = rope["sliding_attention"]["rope_theta"]
            part.rope_parameters = rope["full_attention"]
    return config


class _AutoConfig:
    @staticmethod
    def from_pretrained(*arguments: Any, **options: Any) -> Any:
        return adapted(transformers.AutoConfig.from_pretrained(*arguments, **options))


def main() -> None:
    """Does what the builder does as a program."""
    from onnxruntime_genai.models import builder

    builder.AutoConfig = _AutoConfig
    given = builder.get_args()
    names = ("model_name", "input", "output", "precision", "execution_provider", "cache_dir")
    arguments = [getattr(given, name) for name in names]
    builder.create_model(*arguments, **builder.parse_extra_options(*arguments, given.extra_options))


if __name__ == "__main__":
    main()
