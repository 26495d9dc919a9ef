"""A model that was written as a GGUF file, as llama.cpp writes it, gives the same answers after it is unpacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from verifiers_nb.support.gguf import unpacked

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
NEAR = {"rope_type": "default", "rope_theta": 1e4}
GEMMA = {"head_dim": 8, "sliding_window": 16, "query_pre_attn_scalar": 8}

# llama.cpp's name of the family, the model's class, and settings beside the common ones.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama 2": ("llama", "Llama", {"tie_word_embeddings": False}),
    "Llama 3.2": (
        "llama",
        "Llama",
        {"max_position_embeddings": 131_072, "rope_parameters": LLAMA3},
    ),
    "Qwen 2.5": ("qwen2", "Qwen2", {"tie_word_embeddings": True}),
    "Qwen 2.5, stretched": ("qwen2", "Qwen2", {"rope_parameters": LINEAR}),
    "Qwen 3": ("qwen3", "Qwen3", {"head_dim": 16}),
    "Qwen 3, stretched": ("qwen3", "Qwen3", {"head_dim": 16, "rope_parameters": YARN}),
    "Gemma 2": ("gemma2", "Gemma2", GEMMA),
    "Gemma 3": ("gemma3", "Gemma3", GEMMA),
    "Gemma 3, stretched": (
        "gemma3",
        "Gemma3",
        GEMMA | {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": NEAR}},
    ),
}
SIZES = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 6,  # every sixth layer of Gemma 3 sees all tokens
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def random_model(kind: str, settings: dict[str, Any]) -> Any:
    """Return a model whose weights are large enough that each setting shows in its answers."""
    config = getattr(transformers, f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config")
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config(**SIZES | settings)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.2)
    return model


def tokenizer_fields(writer: gguf.GGUFWriter, family: str) -> None:
    """Write a tokenizer of 32 tokens: of SentencePiece for Gemma, of bytes for the others."""
    if family.startswith("gemma"):
        words = ["<pad>", "<eos>", "<bos>", "<unk>", "<end_of_turn>", "a", "b", "ab", "▁", "▁a"]
        words += [f"<0x{number:02X}>" for number in range(22)]
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([-float(number) for number in range(32)])
        writer.add_token_types([3, 3, 3, 2, 3, *[1] * 5, *[6] * 22])
    else:
        words = ["<unk>", "<|start|>", "<|eot_id|>", "a", "b", "ab", "Ġ", "Ġa"]
        words += [f"w{number}" for number in range(24)]
        writer.add_tokenizer_model("gpt2")
        writer.add_token_types([3, 3, 3, *[1] * 29])
        writer.add_token_merges(["a b", "Ġ a"])
    writer.add_token_list(words)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1 if family.startswith("gemma") else 2)
    writer.add_chat_template("{{ messages }}")


def settings_fields(writer: gguf.GGUFWriter, family: str, config: Any) -> None:
    """Write the settings of a model under llama.cpp's names."""
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    width = getattr(config, "head_dim", None) or 8
    writer.add_rope_dimension_count(width)
    if family in ("qwen3", "gemma2", "gemma3"):
        writer.add_key_length(width)
    if family.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def converted(name: str, weight: np.ndarray, family: str, config: Any) -> np.ndarray:
    """Return a weight as llama.cpp keeps it: other orders of rotated numbers, norms plus one."""
    if family == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        halves = weight.reshape(heads, 2, -1, weight.shape[-1])
        return halves.swapaxes(1, 2).reshape(weight.shape)
    return weight + 1 if family.startswith("gemma") and "norm" in name else weight


def write(path: Path, model: Any, family: str) -> None:
    """Write a model as a GGUF file."""
    writer, config = gguf.GGUFWriter(path, family), model.config
    settings_fields(writer, family, config)
    tokenizer_fields(writer, family)
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[family], config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if not (name == "lm_head.weight" and config.tie_word_embeddings):
            own = names.get_name(name, (".weight", ".bias"))
            kept = converted(name, weight.numpy(), family, config)
            writer.add_tensor(own, np.ascontiguousarray(kept, dtype=np.float32))
    if config.rope_parameters.get("rope_type") == "llama3":
        scaled = LlamaRotaryEmbedding(config).inv_freq
        plain = 500_000.0 ** -(torch.arange(0, 8, 2) / 8)
        writer.add_tensor("rope_freqs.weight", (plain / scaled).numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", CASES)
def test_an_unpacked_model_answers_as_the_one_that_was_written(name: str, tmp_path: Path) -> None:
    family, kind, settings = CASES[name]
    model = random_model(kind, settings)
    write(tmp_path / "model.gguf", model, family)
    folder = unpacked(tmp_path / "model.gguf", torch.float32, tmp_path / "cache")
    read = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.randint(5, 32, (2, 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(read(ids).logits, model(ids).logits)
    ends = [1, 4] if family.startswith("gemma") else [2]
    assert read.generation_config.eos_token_id == ends
    assert AutoTokenizer.from_pretrained(folder)("ab").input_ids[-1] == (
        7 if family.startswith("gemma") else 5
    )
