"""A model that was written as a GGUF file, as llama.cpp writes it, gives the same answers after it is unpacked."""

from __future__ import annotations

import math
import re
import resource
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

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
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
PHI = {"sliding_window": 16, "rope_parameters": HALF}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "long_factor": [2.0, 4.0],
    "short_factor": [1.0, 1.5],
    "original_max_position_embeddings": 64,
}
LONG_PHI = {"rope_parameters": HALF | LONG, "original_max_position_embeddings": 64}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

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
    "Phi 3": ("phi3", "Phi3", PHI),
    "Phi 3, stretched": ("phi3", "Phi3", PHI | LONG_PHI),
    "Qwen 2, experts": (
        "qwen2moe",
        "Qwen2Moe",
        EXPERTS | {"shared_expert_intermediate_size": 48},
    ),
    "Qwen 3, experts": (
        "qwen3moe",
        "Qwen3Moe",
        EXPERTS | {"head_dim": 16, "norm_topk_prob": True},
    ),
    "Mamba": ("mamba", "Mamba", {"state_size": 8}),
}
PIECES = ("gemma2", "gemma3", "phi3")  # the families with a tokenizer of SentencePiece
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


def tokenizer_fields(writer: gguf.GGUFWriter, in_pieces: bool) -> None:
    """Write a tokenizer of 32 tokens: of SentencePiece, as those of Gemma and Phi 3, or of bytes."""
    writer.add_pad_token_id(0)
    if in_pieces:
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
    writer.add_eos_token_id(1 if in_pieces else 2)
    writer.add_chat_template("{{ messages }}")


def state_settings(writer: gguf.GGUFWriter, config: Any) -> None:
    """Write the settings of a model that has a state instead of attention."""
    writer.add_context_length(2**20)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_vocab_size(config.vocab_size)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_inner_size(config.intermediate_size)
    writer.add_ssm_state_size(config.state_size)
    writer.add_ssm_time_step_rank(config.time_step_rank)


def settings_fields(writer: gguf.GGUFWriter, family: str, config: Any) -> None:
    """Write the settings of a model under llama.cpp's names."""
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    if family == "mamba":
        state_settings(writer, config)
        return
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    width = getattr(config, "head_dim", None) or 8
    writer.add_rope_dimension_count(int(width * rope.get("partial_rotary_factor", 1.0)))
    if family in ("qwen3", "qwen3moe", "gemma2", "gemma3"):
        writer.add_key_length(width)
    if family in PIECES:
        writer.add_sliding_window(config.sliding_window)
    if family.endswith("moe"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if family == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_attn_factors((1 + math.log(256 / 64) / math.log(64)) ** 0.5)
    if rope["rope_type"] in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def parts(name: str, weight: np.ndarray) -> dict[str, np.ndarray]:
    """Return a weight as llama.cpp splits it, by names: experts have two weights for a pair."""
    if name.endswith("experts.gate_up_proj"):
        gate, up = np.split(weight, 2, axis=1)
        stem = name.removesuffix("gate_up_proj")
        return {f"{stem}gate_proj.weight": gate, f"{stem}up_proj.weight": up}
    return {f"{name}.weight" if name.endswith("experts.down_proj") else name: weight}


def converted(name: str, weight: np.ndarray, family: str, config: Any) -> np.ndarray:
    """Return a weight as llama.cpp keeps it: other orders of rotated numbers, norms plus one."""
    if family == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        halves = weight.reshape(heads, 2, -1, weight.shape[-1])
        return halves.swapaxes(1, 2).reshape(weight.shape)
    if name.endswith("A_log"):
        return -np.exp(weight)
    if name.endswith(("shared_expert_gate.weight", "conv1d.weight")):
        return weight.squeeze()
    return weight + 1 if family.startswith("gemma") and "norm" in name else weight


def write(path: Path, model: Any, family: str, in_pieces: bool) -> None:
    """Write a model as a GGUF file, with a tokenizer of pieces or of bytes."""
    writer, config = gguf.GGUFWriter(path, family), model.config
    settings_fields(writer, family, config)
    tokenizer_fields(writer, in_pieces)
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[family], config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if not (name == "lm_head.weight" and config.tie_word_embeddings):
            kept = converted(name, weight.numpy(), family, config)
            for part, values in parts(name, kept).items():
                own = names.get_name(part, (".weight", ".bias"))
                writer.add_tensor(own, np.ascontiguousarray(values, dtype=np.float32))
    if family == "phi3" and config.rope_parameters["rope_type"] == "longrope":
        for length in ("long", "short"):
            factors = np.array(config.rope_parameters[f"{length}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)
    if family == "llama" and config.rope_parameters["rope_type"] == "llama3":
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
    write(tmp_path / "model.gguf", model, family, family in PIECES)
    folder = unpacked(tmp_path / "model.gguf", torch.float32, tmp_path / "cache")
    read = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.randint(5, 32, (2, 100), generator=torch.Generator().manual_seed(0))
    for text in (ids, ids[:, :40]):
        with torch.no_grad():
            torch.testing.assert_close(read(text).logits, model(text).logits)
    ends = [1, 4] if family in PIECES else [2]
    assert read.generation_config.eos_token_id == ends
    assert AutoTokenizer.from_pretrained(folder)("ab").input_ids[-1] == (
        7 if family in PIECES else 5
    )


def test_a_tokenizer_of_bytes_is_not_taken_for_one_of_pieces(tmp_path: Path) -> None:
    write(tmp_path / "phi4.gguf", random_model("Phi3", PHI), "phi3", in_pieces=False)
    try:
        folder = unpacked(tmp_path / "phi4.gguf", torch.float32, tmp_path / "cache")
    except ValueError as error:
        assert re.search(r"made of bytes.* architecture is phi3", str(error))
    else:  # transformers 5.24 reads it
        assert AutoTokenizer.from_pretrained(folder)("ab").input_ids[-1] == 5


def test_a_full_disk_is_no_fault_of_the_file(tmp_path: Path) -> None:
    """The error names the folder; afterwards the model is unpacked, and then also without a lock."""
    write(tmp_path / "model.gguf", random_model("Llama", {}), "llama", in_pieces=False)
    given = tmp_path / "model.gguf", torch.float32, tmp_path / "cache"
    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match="can't be unpacked into .*cache.*File too large"):
            unpacked(*given)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert not [*tmp_path.rglob("*.safetensors")]
    folder = unpacked(*given)
    with patch("verifiers_nb.support.gguf.FileLock", side_effect=OSError("read-only")):
        assert unpacked(*given) == folder
