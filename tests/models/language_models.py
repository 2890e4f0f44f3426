"""The Python side of tests/models/language_model_test.cpp: language_models.py COMMAND FOLDER.

    make   a folder FOLDER/FAMILY as transformers saves a model with random weights, for each family, with tokens, logits,
           the loss and gradients in results.safetensors
    check  reads each FOLDER/FAMILY/back, in which nothing may be missing or unexpected, and compares logits
"""

import sys
from pathlib import Path

import torch
import transformers as t
from safetensors.torch import load_file, save_file

torch.manual_seed(1)
torch.set_num_threads(1)
N, T = 2, 11
SIZES = {"vocab_size": 37, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def models(positions=64):
    """Names and models with so many positions."""
    sizes = SIZES | {"max_position_embeddings": positions}
    llama3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    yield "llama2", t.LlamaForCausalLM(t.LlamaConfig(**sizes | {"num_key_value_heads": 4}))
    yield "llama3", t.LlamaForCausalLM(t.LlamaConfig(**sizes, rope_parameters=llama3, tie_word_embeddings=True))
    yield "llama_biases", t.LlamaForCausalLM(t.LlamaConfig(**sizes, attention_bias=True, mlp_bias=True, head_dim=8))
    yield "smollm", t.LlamaForCausalLM(t.LlamaConfig(**sizes, tie_word_embeddings=True, rms_norm_eps=1e-5))
    yield "smollm3", t.SmolLM3ForCausalLM(t.SmolLM3Config(**sizes, no_rope_layer_interval=2))
    yield "smollm3_sliding", t.SmolLM3ForCausalLM(t.SmolLM3Config(
        **sizes, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=4))
    yield "mistral", t.MistralForCausalLM(t.MistralConfig(**sizes, sliding_window=4))
    yield "mistral_all", t.MistralForCausalLM(t.MistralConfig(**sizes, sliding_window=None))
    yield "qwen2", t.Qwen2ForCausalLM(t.Qwen2Config(**sizes, tie_word_embeddings=True))
    yield "qwen2_sliding", t.Qwen2ForCausalLM(t.Qwen2Config(**sizes, use_sliding_window=True, sliding_window=4,
                                                            max_window_layers=1))
    yield "qwen3", t.Qwen3ForCausalLM(t.Qwen3Config(**sizes, head_dim=8))
    yield "olmo2", t.Olmo2ForCausalLM(t.Olmo2Config(**sizes))
    yield "gemma3", t.Gemma3ForCausalLM(t.Gemma3TextConfig(
        **sizes, head_dim=8, sliding_window=4, query_pre_attn_scalar=10,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"]))
    yield "gemma3_scaled", t.Gemma3ForCausalLM(t.Gemma3TextConfig(
        **sizes | {"num_hidden_layers": 7}, head_dim=4, sliding_window=4,
        rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}))
    yield "gpt2", t.GPT2LMHeadModel(t.GPT2Config(vocab_size=37, n_positions=positions, n_embd=16, n_layer=3, n_head=4,
                                                 bos_token_id=1, eos_token_id=2))


def enlarge(model):
    """Gives a model weights that make its logits differ."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.dim() == 2 else 1).add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def make(folder):
    for name, model in models():
        enlarge(model)
        tokens = torch.randint(3, 37, (N, T))
        targets = torch.randint(3, 37, (N, T))
        targets[0, :3] = -100
        logits = model(tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        embedding = model.get_input_embeddings().weight.grad
        left = torch.zeros(N, T, dtype=torch.long)
        left[0] = 1
        left[1, 4:] = 1
        with torch.no_grad():
            padded = model(tokens, attention_mask=left, position_ids=(left.cumsum(1) - 1).clamp_min(0)).logits
        words = tokens
        with torch.no_grad():
            for _ in range(20):
                words = torch.cat([words, model(words, use_cache=False).logits[:, -1:].argmax(-1)], 1)
        model.save_pretrained(folder / name, **({"max_shard_size": "10KB"} if name == "llama2" else {}))
        save_file({"tokens": tokens, "targets": targets, "logits": logits.detach().contiguous(), "loss": loss.detach(), "words": words,
                   "embedding": embedding.contiguous(), "padded": padded.contiguous(),
                   "positions": (left.cumsum(1) - 1).masked_fill(left == 0, -1)}, folder / name / "results.safetensors.out")
    base = t.LlamaModel(t.LlamaConfig(**SIZES))
    base.save_pretrained(folder / "body")


def check(folder):
    for name, model in models():
        again, info = type(model).from_pretrained(folder / name / "back", output_loading_info=True)
        assert not any(info.values()), (name, info)
        results = load_file(folder / name / "results.safetensors.out")
        with torch.no_grad():
            difference = (again.eval()(results["tokens"]).logits - results["logits"]).abs().max().item()
        assert difference < 1e-6, (name, difference)


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](Path(sys.argv[2]))
