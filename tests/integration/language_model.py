"""The Python side of tests/integration/language_model_program_test.cpp: language_model.py COMMAND FOLDER.

    make      FOLDER/model, as transformers saves a small model and a tokenizer that learned FOLDER/text.txt
    generate  prints what transformers makes of the prompt in FOLDER/prompt.txt, greedily, with FOLDER/model
    check     reads FOLDER/trained, in which nothing may be missing or unexpected, and prints what it makes of the prompt
"""

import sys
from pathlib import Path

import torch
import transformers as t
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TOKENS = 40


def make(folder):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.train([str(folder / "text.txt")], trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)],
        show_progress=False))
    t.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder / "model")
    torch.manual_seed(2)
    model = t.Qwen3ForCausalLM(t.Qwen3Config(
        vocab_size=400, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, initializer_range=0.4, bos_token_id=None,
        eos_token_id=1))
    model.save_pretrained(folder / "model")


def sample(model, tokenizer, prompt):
    tokens = tokenizer(prompt, return_tensors="pt")
    generated = model.generate(**tokens, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    print(tokenizer.decode(generated[0], skip_special_tokens=True))


def generate(folder):
    sample(t.AutoModelForCausalLM.from_pretrained(folder / "model"),
           t.AutoTokenizer.from_pretrained(folder / "model"), (folder / "prompt.txt").read_text())


def check(folder):
    model, info = t.AutoModelForCausalLM.from_pretrained(folder / "trained", output_loading_info=True)
    assert not any(info.values()), info
    sample(model, t.AutoTokenizer.from_pretrained(folder / "trained"), (folder / "prompt.txt").read_text())


torch.set_num_threads(1)
{"make": make, "generate": generate, "check": check}[sys.argv[1]](Path(sys.argv[2]))
