"""Make a tiny model for tests: real weights format, real tokenizer, meaningless text.

Runs in the vLLM environment (`python engines/tiny_model.py DIR`); it imports nothing of ours. The
same seed gives the same weights, and a directory that is complete already is left alone.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

_COMPLETE = "wattmesh-complete"
_VOCABULARY = 1000
_TEXT = (
    "The river runs past the old stone bridge and the wind moves over the field. ",
    "A small light shines near the hill while the rain falls slowly on the road. ",
    "How many birds are there? One, two, three, 4, 5, 678! {'json': [true, null]}\n",
    "Größe, façade, niño, 日本語, emoji 🙂 and code: def f(x): return x + 1\n",
)
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_model(directory: Path, seed: int) -> None:
    """Write a Qwen2 of two layers with a byte-level BPE tokenizer into a directory."""
    import torch  # noqa: PLC0415 heavy, and absent from the mesh's own environment
    from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: PLC0415

    tokenizer = _tokenizer()
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    directory.mkdir(parents=True, exist_ok=True)
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    (directory / _COMPLETE).write_text(f"seed {seed}\n")


def _tokenizer() -> Any:
    from tokenizers import ByteLevelBPETokenizer  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        _TEXT * 50,
        vocab_size=_VOCABULARY,
        min_frequency=1,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer,
        bos_token="<|endoftext|>",  # noqa: S106 not a secret
        eos_token="<|im_end|>",  # noqa: S106
        pad_token="<|endoftext|>",  # noqa: S106
        chat_template=_CHAT_TEMPLATE,
    )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description="Make a tiny model for tests.",
        epilog="Example: .venv-vllm/bin/python engines/tiny_model.py /tmp/tiny-model",
    )
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not (options.directory / _COMPLETE).is_file():
        make_tiny_model(options.directory, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
