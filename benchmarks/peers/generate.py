"""The other side of generation_benchmark: generate.py FOLDER BATCH TOKENS prints the seconds of processor time of one
`generate` of transformers, greedily, on one thread. Makes FOLDER, a Llama of 10 million parameters with random weights,
where there is none."""

import sys
import time
from pathlib import Path

import torch
import transformers

folder, batch, tokens = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
if not (folder / "config.json").exists():
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=8192, hidden_size=256, intermediate_size=688, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=1024)).save_pretrained(folder)
if batch:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config.eos_token_id = None
    prompts = torch.tensor([[(17 * i + 101 * row + 3) % 8192 for i in range(32)] for row in range(batch)])
    mask = torch.ones_like(prompts)
    with torch.inference_mode():
        model.generate(prompts, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
        started = time.process_time()
        model.generate(prompts, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
        print(time.process_time() - started)
