"""The other side of adapters_benchmark: peft_adapters.py FOLDER LOOP TARGETS STEPS ROWS LENGTH prints the seconds of
processor time of a training step of PEFT's LoRA on transformers' model, on one thread, and the growth of the peak of
the process's memory in MiB while it trains. LOOP: `loop` (of PyTorch) or `trainer` (transformers' Trainer). TARGETS:
`qv` or `all` linear layers of the blocks. Makes FOLDER, a Llama with random weights of 10 million parameters, or of 60
where its name ends in 60m, where there is none."""

import contextlib
import resource
import sys
import tempfile
import time
from pathlib import Path

import peft
import torch
import transformers

WARM_UP = 6
QV = ["q_proj", "v_proj"]
ALL = [*QV, "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    folder, loop, targets = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    steps, rows, length = (int(word) for word in sys.argv[4:7])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if not (folder / "config.json").exists():
        sizes = ({"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 16} if folder.name.endswith("60m")
                 else {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 8})
        transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=8192, num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=1024,
            **sizes)).save_pretrained(folder)
    if not steps:
        print(0, 0)
        return
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.config.use_cache = False
    model = peft.get_peft_model(model, peft.LoraConfig(
        task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules=QV if targets == "qv" else ALL)).train()
    tokens = torch.randint(8192, (rows * (steps + WARM_UP), length))
    started, before = 0.0, peak()
    if loop == "loop":
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
        for step in range(steps + WARM_UP):
            if step == WARM_UP:
                started = time.process_time()
            batch = tokens[step * rows:(step + 1) * rows]
            optimizer.zero_grad()
            model(batch, labels=batch).loss.backward()
            optimizer.step()
    else:
        class Timed(transformers.TrainerCallback):
            def on_step_begin(self, args, state, control, **kwargs):
                nonlocal started
                if state.global_step == WARM_UP:
                    started = time.process_time()

        class Texts(torch.utils.data.Dataset):
            def __len__(self):
                return len(tokens)

            def __getitem__(self, index):
                return {"input_ids": tokens[index], "labels": tokens[index]}

        # It prints a summary.
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(sys.stderr):
            transformers.Trainer(model=model, train_dataset=Texts(), callbacks=[Timed()], args=transformers.TrainingArguments(
                out, per_device_train_batch_size=rows, num_train_epochs=1, learning_rate=1e-4, lr_scheduler_type="constant",
                max_grad_norm=0, weight_decay=0.01, save_strategy="no", logging_strategy="no", report_to=[], use_cpu=True,
                optim="adamw_torch_fused", disable_tqdm=True)).train()
    print((time.process_time() - started) / steps, peak() - before)


if __name__ == "__main__":
    main()
