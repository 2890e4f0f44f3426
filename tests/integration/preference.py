"""The Python side of tests/integration/preference_program_test.cpp: preference.py COMMAND FOLDER.

    make   FOLDER/model, a small model of transformers with FOLDER/tokenizer.json
    check  prints the loss of direct preference optimization, by its definition, of FOLDER/trained over FOLDER/model as
           the reference on the pairs of FOLDER/val.jsonl, and the share of pairs whose chosen answer is preferred
"""

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers as t

BETA = 0.5


def make(folder):
    torch.manual_seed(2)
    t.LlamaForCausalLM(t.LlamaConfig(
        vocab_size=259, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, initializer_range=0.3)).save_pretrained(folder / "model")
    shutil.copy(folder / "tokenizer.json", folder / "model")


def log_likelihood(model, prompt, answer):
    tokens = torch.tensor([prompt + answer])
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits.double().log_softmax(-1)[0]
    return sum(logits[len(prompt) - 1 + i, token] for i, token in enumerate(answer))


def check(folder):
    tokenizer = t.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    policy, reference = (t.AutoModelForCausalLM.from_pretrained(folder / name).eval() for name in ("trained", "model"))
    losses, hits = [], []
    for line in (folder / "val.jsonl").read_text().splitlines():
        pair = {name: tokenizer(text, add_special_tokens=False)["input_ids"] for name, text in json.loads(line).items()}
        ratio = {name: log_likelihood(policy, pair["prompt"], pair[name]) -
                 log_likelihood(reference, pair["prompt"], pair[name]) for name in ("chosen", "rejected")}
        margin = BETA * (ratio["chosen"] - ratio["rejected"])
        losses.append(-torch.nn.functional.logsigmoid(margin))
        hits.append(float(margin > 0))
    print(f"val_loss {torch.stack(losses).mean().item():.9f}\nval_accuracy {sum(hits) / len(hits):.6f}")


torch.set_num_threads(1)
{"make": make, "check": check}[sys.argv[1]](Path(sys.argv[2]))
