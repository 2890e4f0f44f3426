"""The Python side of tests/models/adapter_files_test.cpp: adapters.py COMMAND FOLDER.

    make   for each case a base FOLDER/CASE/base, adapters of PEFT before and after ten steps in FOLDER/CASE/begin and
           FOLDER/CASE/trained, and tokens, the batches of the steps and logits in results.safetensors.out
    base   a folder FOLDER/base of a language model of 261 tokens
    read   reads FOLDER/trained by transformers and FOLDER/adapter on FOLDER/base by PEFT, which compute what is in
           FOLDER/logits.safetensors
    read_merged  the same by transformers alone
    check  reads what Levin wrote: adapters after the same steps in FOLDER/CASE/back, a model that they are merged into
           in FOLDER/CASE/merged
"""

import sys
from pathlib import Path

import peft
import torch
import transformers as t
from safetensors.torch import load_file, save_file

torch.manual_seed(1)
torch.set_num_threads(1)
N, T, STEPS = 2, 11, 10
SIZES = {"vocab_size": 37, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "llama": (lambda: t.LlamaForCausalLM(t.LlamaConfig(**SIZES)),
              {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}),
    "qwen": (lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**SIZES)),
             {"r": 3, "lora_alpha": 5, "use_rslora": True, "target_modules": ALL, "modules_to_save": ["lm_head"]}),
}


def loss_of(model, batch):
    logits = model(batch["tokens"]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["next"].flatten())


def make(folder):
    for name, (base, options) in CASES.items():
        model = base()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3 if parameter.dim() == 2 else 1).add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(folder / name / "base")
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **options))
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if "lora_B" in key:
                    parameter.normal_(std=0.3)
        tokens = torch.randint(3, 37, (STEPS * N, T))
        targets = torch.randint(3, 37, (STEPS * N, T))
        targets[::2, :3] = -100
        with torch.no_grad():
            logits = model(tokens[:N]).logits
        model.save_pretrained(folder / name / "begin")
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
        for step in range(STEPS):
            rows = slice(step * N, (step + 1) * N)
            optimizer.zero_grad()
            loss_of(model, {"tokens": tokens[rows], "next": targets[rows]}).backward()
            optimizer.step()
        model.save_pretrained(folder / name / "trained")
        save_file({"tokens": tokens, "next": targets, "logits": logits.contiguous()},
                  folder / name / "results.safetensors.out")


def check(folder):
    for name, (base, options) in CASES.items():
        results = load_file(folder / name / "results.safetensors.out")
        written = load_file(folder / name / "written.safetensors.out")
        trained = load_file(folder / name / "trained" / "adapter_model.safetensors")
        back = load_file(folder / name / "back" / "adapter_model.safetensors")
        assert trained.keys() == back.keys(), (name, trained.keys() ^ back.keys())
        begin = load_file(folder / name / "begin" / "adapter_model.safetensors")
        for key, tensor in trained.items():
            assert back[key].dtype == torch.float32 and (begin[key] - tensor).abs().max() > 1e-2, key
            difference = (back[key] - tensor).abs().max().item()
            assert difference < 1e-5, (name, key, difference)
        plain = t.AutoModelForCausalLM.from_pretrained(folder / name / "base")
        model = peft.PeftModel.from_pretrained(plain, folder / name / "back")
        assert model.peft_config["default"].r == options["r"]
        merged = t.AutoModelForCausalLM.from_pretrained(folder / name / "merged")
        with torch.no_grad():
            for read in (model.eval(), merged.eval()):
                difference = (read(results["tokens"][:N]).logits - written["logits"]).abs().max().item()
                assert difference < 1e-5 * written["logits"].abs().max().item(), (name, difference)


def base(folder):
    model = t.LlamaForCausalLM(t.LlamaConfig(**SIZES | {"vocab_size": 261, "initializer_range": 0.2}))
    model.save_pretrained(folder / "base")


def difference_of(folder, model):
    written = load_file(folder / "logits.safetensors")
    with torch.no_grad():
        difference = (model.eval()(written["tokens"]).logits - written["logits"]).abs().max().item()
    return difference / written["logits"].abs().max().item()


def read(folder):
    plain = t.AutoModelForCausalLM.from_pretrained(folder / "base")
    assert difference_of(folder, plain) > 1e-2
    read_merged(folder)
    assert difference_of(folder, peft.PeftModel.from_pretrained(plain, folder / "adapter")) < 1e-5


def read_merged(folder):
    merged, info = t.AutoModelForCausalLM.from_pretrained(folder / "trained", output_loading_info=True)
    assert not any(info.values()), info
    assert (difference := difference_of(folder, merged)) < 1e-5, difference


if __name__ == "__main__":
    {"make": make, "check": check, "base": base, "read": read, "read_merged": read_merged}[sys.argv[1]](Path(sys.argv[2]))
