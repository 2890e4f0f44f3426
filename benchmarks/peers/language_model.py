"""The other side of language_model_benchmark: language_model.py FOLDER PRECISION STEPS ROWS LENGTH [compiled] prints the
seconds of processor time of a training step of transformers' model, on one thread. Makes FOLDER, a Llama of 10 million
parameters with random weights, where there is none."""

import sys
import time
from pathlib import Path

import torch
import transformers

WARM_UP = 12

folder, precision = Path(sys.argv[1]), sys.argv[2]
steps, rows, length = (int(word) for word in sys.argv[3:6])
torch.set_num_threads(1)
torch.manual_seed(0)
if not (folder / "config.json").exists():
    transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=8192, hidden_size=256, intermediate_size=688, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=1024)).save_pretrained(folder)
model = transformers.AutoModelForCausalLM.from_pretrained(folder).train()
forward = torch.compile(model) if "compiled" in sys.argv[6:] else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
tokens = torch.randint(model.config.vocab_size, (rows * (steps + WARM_UP), length)) if steps else torch.empty(0)
started = 0.0
for step in range(steps + WARM_UP if steps else 0):
    if step == WARM_UP:
        started = time.process_time()
    batch = tokens[step * rows:(step + 1) * rows]
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
        loss = forward(batch, labels=batch, use_cache=False).loss
    loss.backward()
    optimizer.step()
print((time.process_time() - started) / max(steps, 1))
