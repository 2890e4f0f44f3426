"""What PyTorch's and transformers' own classes make of random weights: oracles.py torch|transformers FOLDER.

Writes a file CASE.safetensors for each case: weights under the names of levin::nn ("weight/layers.0.mlp.up_proj.weight"),
inputs ("input/x", "input/mask"), the output and, of the loss (output · input/slope).sum(), the gradients by x and by
the weights ("gradient/x", "gradient/NAME").
"""

import re
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

torch.manual_seed(3)
torch.set_num_threads(1)

N, T, S, WIDTH = 2, 9, 5, 16


def spread(module):
    """Biases that are zero and norms that are one would show nothing."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return module


def renamed(name, tensor, rules):
    """Pairs of a name of levin::nn and a tensor for one of PyTorch's."""
    for match, to in rules:
        name = re.sub(match, to, name)
    if "in_proj_" not in name:
        return [(name, tensor)]
    return [(name.replace("in_proj_", f"{part}_proj."), piece) for part, piece in zip("qkv", tensor.chunk(3))]


ATTENTION = [(r"\bout_proj\b", "o_proj")]
ENCODER = [*ATTENTION, (r"\blinear1\b", "mlp.up_proj"), (r"\blinear2\b", "mlp.down_proj")]
PRE = [*ENCODER, (r"\bnorm1\b", "input_layernorm"), (r"\bnorm2\b", "post_attention_layernorm")]
POST = [*ENCODER, (r"\bnorm1\b", "post_attention_layernorm"), (r"\bnorm2\b", "post_feedforward_layernorm")]
CROSS = [*ENCODER, (r"\bmultihead_attn\b", "cross_attn"), (r"\bnorm3\b", "NORM3")]
PRE_CROSS = [*CROSS, (r"\bnorm1\b", "input_layernorm"), (r"\bnorm2\b", "pre_cross_attention_layernorm"),
             (r"\bNORM3\b", "post_attention_layernorm")]
POST_CROSS = [*CROSS, (r"\bnorm1\b", "post_attention_layernorm"), (r"\bnorm2\b", "post_cross_attention_layernorm"),
              (r"\bNORM3\b", "post_feedforward_layernorm")]


def write(folder, case, module, run, inputs, rules=(), counted=None):
    """`counted`: the places [N, T] of the output that count; the others are padding."""
    x = inputs["x"].requires_grad_()
    output = run(module, inputs)
    slope = torch.randn_like(output)
    if counted is not None:
        slope = slope * counted.unsqueeze(-1)
    (output * slope).sum().backward()
    tensors = {f"input/{name}": tensor.detach().contiguous() for name, tensor in inputs.items()}
    tensors |= {"output": output.detach(), "input/slope": slope, "gradient/x": x.grad}
    if counted is not None:
        tensors["counted"] = counted.clone()
    for name, parameter in module.named_parameters():
        for new, tensor in renamed(name, parameter.detach(), rules):
            tensors["weight/" + new] = tensor.clone().contiguous()
        for new, tensor in renamed(name, parameter.grad, rules):
            tensors["gradient/" + new] = tensor.clone().contiguous()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / f"{case}.safetensors")


def lengths_mask():
    """True where a token is: rows of 9 and 6."""
    return torch.arange(T).unsqueeze(0) < torch.tensor([[T], [6]])


def with_torch(folder):
    def x():
        return {"x": torch.randn(N, T, WIDTH)}

    write(folder, "rms_norm", spread(nn.RMSNorm(WIDTH, eps=1e-3)), lambda m, i: m(i["x"]), x())
    write(folder, "rms_norm_default", spread(nn.RMSNorm(WIDTH)), lambda m, i: m(i["x"]), x())

    attention = {"num_heads": 4, "batch_first": True}
    write(folder, "attention", spread(nn.MultiheadAttention(WIDTH, **attention)),
          lambda m, i: m(i["x"], i["x"], i["x"], need_weights=False)[0], x(), ATTENTION)
    write(folder, "attention_masked", spread(nn.MultiheadAttention(WIDTH, **attention)),
          lambda m, i: m(i["x"], i["x"], i["x"], attn_mask=i["mask"], need_weights=False)[0],
          x() | {"mask": torch.randn(T, T)}, ATTENTION)
    write(folder, "attention_to_memory", spread(nn.MultiheadAttention(WIDTH, **attention)),
          lambda m, i: m(i["x"], i["memory"], i["memory"], key_padding_mask=i["memory_mask"].logical_not(),
                         need_weights=False)[0],
          x() | {"memory": torch.randn(N, S, WIDTH), "memory_mask": torch.tensor([[True] * S, [True] * 3 + [False] * 2])},
          ATTENTION)

    for placement in ("pre", "post"):
        for activation in ("relu", "gelu"):
            layer = nn.TransformerEncoderLayer(WIDTH, 4, 24, dropout=0, activation=activation, batch_first=True,
                                               norm_first=placement == "pre")
            write(folder, f"encoder_layer_{placement}_{activation}", spread(layer),
                  lambda m, i: m(i["x"], src_key_padding_mask=i["mask"].logical_not()),
                  x() | {"mask": lengths_mask()}, PRE if placement == "pre" else POST, lengths_mask())
        layer = nn.TransformerDecoderLayer(WIDTH, 4, 24, dropout=0, batch_first=True, norm_first=placement == "pre")
        write(folder, f"decoder_layer_{placement}", spread(layer),
              lambda m, i: m(i["x"], i["memory"], tgt_mask=nn.Transformer.generate_square_subsequent_mask(T),
                             tgt_is_causal=True),
              x() | {"memory": torch.randn(N, S, WIDTH)}, PRE_CROSS if placement == "pre" else POST_CROSS)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 24, dropout=0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
    write(folder, "encoder", spread(encoder), lambda m, i: m(i["x"]), x(), PRE)
    layer = nn.TransformerDecoderLayer(WIDTH, 4, 24, dropout=0, batch_first=True)
    decoder = nn.TransformerDecoder(layer, 2)
    write(folder, "decoder", spread(decoder),
          lambda m, i: m(i["x"], i["memory"], tgt_mask=nn.Transformer.generate_square_subsequent_mask(T)),
          x() | {"memory": torch.randn(N, S, WIDTH)}, POST_CROSS)


def with_transformers(folder):
    import transformers as t

    sizes = {"vocab_size": 32, "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 3,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
             "attn_implementation": "eager", "pad_token_id": 0}
    ropes = {
        "llama": {"rope_type": "default", "rope_theta": 10000.0},
        "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        "llama3": {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
        "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32},
        "yarn_scaled": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.3,
                        "beta_fast": 16, "beta_slow": 2, "truncate": False, "original_max_position_embeddings": 16},
    }
    cases = {name: t.LlamaModel(t.LlamaConfig(**sizes | {"max_position_embeddings": 6 if name == "dynamic" else 64,
                                                         "rope_parameters": rope})) for name, rope in ropes.items()}
    cases["mistral"] = t.MistralModel(t.MistralConfig(**sizes, sliding_window=3))
    cases["qwen2"] = t.Qwen2Model(t.Qwen2Config(**sizes))
    cases["qwen3"] = t.Qwen3Model(t.Qwen3Config(**sizes, head_dim=8))
    cases["olmo2"] = t.Olmo2Model(t.Olmo2Config(**sizes))
    cases["gemma3"] = t.Gemma3TextModel(t.Gemma3TextConfig(**sizes, head_dim=8, sliding_window=3,
                                                           query_pre_attn_scalar=10,
                                                           layer_types=["sliding_attention"] * 3))

    def run(model, inputs):
        options = {"attention_mask": inputs["mask"].long()} if "mask" in inputs else {}
        if "positions" in inputs:
            options["position_ids"] = inputs["positions"].clamp_min(0)
        return model(inputs_embeds=inputs["x"], use_cache=False, **options).last_hidden_state

    for name, model in cases.items():
        model.embed_tokens = None
        write(folder, name, spread(model), run, {"x": torch.randn(N, T, WIDTH)})
        mask = lengths_mask()
        write_padded = {"right": mask, "left": mask.flip(1)}
        for side, present in write_padded.items():
            if name not in ("llama", "mistral", "gemma3"):
                continue
            model.zero_grad()
            positions = (present.cumsum(1) - 1).masked_fill(present.logical_not(), -1)
            write(folder, f"{name}_{side}", model, run,
                  {"x": torch.randn(N, T, WIDTH), "mask": present, "positions": positions}, counted=present)
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = t.MixtralConfig(**sizes, num_local_experts=5, num_experts_per_tok=2)
    config._experts_implementation = "eager"
    block = MixtralSparseMoeBlock(config)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0, 0.3)
    write(folder, "mixtral_experts", block, lambda m, i: m(i["x"]), {"x": torch.randn(N, T, WIDTH)})
    # Two documents in a row, by a mask of blocks.
    model = t.LlamaModel(t.LlamaConfig(**sizes))
    model.embed_tokens = None
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 1, 2]])
    documents = (positions == 0).cumsum(1)
    blocks = (documents.unsqueeze(2) == documents.unsqueeze(1)) & torch.ones(T, T, dtype=torch.bool).tril()
    blocks = torch.zeros(N, 1, T, T).masked_fill(blocks.logical_not().unsqueeze(1), float("-inf"))
    write(folder, "packed", spread(model),
          lambda m, i: m(inputs_embeds=i["x"], attention_mask=blocks, position_ids=i["positions"],
                         use_cache=False).last_hidden_state,
          {"x": torch.randn(N, T, WIDTH), "positions": positions})


{"torch": with_torch, "transformers": with_transformers}[sys.argv[1]](Path(sys.argv[2]))
