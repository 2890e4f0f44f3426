"""The Python side of tests/models/generate_oracle_test.cpp: generation.py COMMAND FOLDER [TOKENS NAME...].

    make        a folder FOLDER/FAMILY as transformers saves a model with random weights, for each NAME, with prompts and
                what `generate` makes of them in generated.json: greedily (TOKENS tokens), and by beams
    choices     probabilities that transformers' processors give, in FOLDER/choices.safetensors
    perplexity  FOLDER/model, for the tokenizer FOLDER/tokenizer.json, and in FOLDER/perplexity.json those of
                FOLDER/text.txt, by the loop of transformers' documentation
"""

import json
import math
import sys
from pathlib import Path

import torch
import transformers as t
from safetensors.torch import save_file

import language_models
from language_models import enlarge

PROMPTS = (9, 4, 13)


def left_padded(prompts):
    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return tokens, mask


def generate(model, prompts, count, **options):
    tokens, mask = left_padded(prompts)
    with torch.no_grad():
        result = model.generate(tokens, attention_mask=mask, max_new_tokens=count, pad_token_id=0, do_sample=False,
                                return_dict_in_generate=True, output_scores=True, **options)
    return result.sequences[:, tokens.size(1):], result.scores


def make(folder, count, names):
    for name, model in language_models.models(positions=512):
        if name not in names:
            continue
        enlarge(model)
        model.generation_config.eos_token_id = None
        # Rounding decides nothing where the likeliest token is so much likelier than the next.
        for _ in range(50):
            prompts = [torch.randint(3, 37, (length,)).tolist() for length in PROMPTS]
            greedy, scores = generate(model, prompts, count)
            best = torch.stack(scores).topk(2).values
            if (best[..., 0] - best[..., 1]).min() > 1e-4 * best.abs().max():
                break
        else:
            raise SystemExit(f"{name}: the likeliest tokens are too close")
        # Of one prompt: padding counts as a token there.
        penalized = generate(model, prompts[:1], 12, repetition_penalty=1.3)[0]
        ends = sorted({greedy[0, 6].item(), greedy[2, 9].item()})
        beams = []
        searches = ((3, 1.0, ends), (4, 0.3, ends[:1]), (2, 1.0, []), (3, 2.0, ends))
        for width, penalty, end_tokens in searches[:1 if count < 100 else 4]:
            found = generate(model, prompts, 12, num_beams=width, length_penalty=penalty,
                             eos_token_id=end_tokens or None)[0]
            rows = []
            for row in found.tolist():
                end = next((i for i, token in enumerate(row) if token in end_tokens), len(row))
                rows.append(row[:end])
            beams.append({"beams": width, "length_penalty": penalty, "end_tokens": end_tokens, "tokens": rows})
        model.generation_config.eos_token_id = 2
        model.save_pretrained(folder / name)
        (folder / name / "generated.json").write_text(json.dumps({
            "prompts": prompts, "greedy": greedy.tolist(), "penalized": penalized.tolist(), "beams": beams}))


def choices(folder):
    torch.manual_seed(3)
    scores = torch.randn(4, 50) * 3
    prompts = torch.randint(0, 50, (4, 7))
    tensors = {"scores": scores, "prompts": prompts}
    for i, (temperature, top_k, top_p, min_p, penalty) in enumerate((
            (1.0, 0, 1.0, 0.0, 1.0), (0.7, 0, 1.0, 0.0, 1.0), (1.0, 5, 1.0, 0.0, 1.0), (1.0, 0, 0.8, 0.0, 1.0),
            (1.5, 0, 1.0, 0.1, 1.0), (1.0, 0, 1.0, 0.0, 1.7), (1.3, 12, 0.9, 0.05, 0.8), (1.0, 0, 1e-6, 0.0, 1.0),
            (0.5, 60, 0.95, 1.0, 1.2))):
        processors = [t.RepetitionPenaltyLogitsProcessor(penalty), t.TemperatureLogitsWarper(temperature)]
        if top_k > 0:
            processors.append(t.TopKLogitsWarper(top_k))
        if top_p < 1:
            processors.append(t.TopPLogitsWarper(top_p))
        if min_p > 0:
            processors.append(t.MinPLogitsWarper(min_p))
        tensors[f"options{i}"] = torch.tensor([temperature, top_k, top_p, min_p, penalty], dtype=torch.float64)
        tensors[f"probabilities{i}"] = t.LogitsProcessorList(processors)(prompts, scores.clone()).softmax(-1)
    save_file(tensors, folder / "choices.safetensors")


def perplexity(folder):
    tokenizer = t.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = enlarge(t.LlamaForCausalLM(t.LlamaConfig(**language_models.SIZES | {"vocab_size": 320})))
    model.save_pretrained(folder / "model")
    ids = torch.tensor([tokenizer((folder / "text.txt").read_text(encoding="utf-8"))["input_ids"]])
    results = {}
    for length, stride in ((64, 64), (20, 20), (33, 10), (64, 1)):
        total, count, previous = 0.0, 0, 0
        for begin in range(0, ids.size(1), stride):
            end = min(begin + length, ids.size(1))
            window = ids[:, begin:end]
            targets = window.clone()
            targets[:, : -(end - previous)] = -100
            counting = (targets[:, 1:] != -100).sum().item()
            if counting:
                with torch.no_grad():
                    total += model(window, labels=targets).loss.item() * counting
            count += counting
            previous = end
            if end == ids.size(1):
                break
        results[f"{length} {stride}"] = math.exp(total / count)
    (folder / "perplexity.json").write_text(json.dumps({"tokens": ids.size(1), "perplexity": results}))


if __name__ == "__main__":
    command, folder = sys.argv[1], Path(sys.argv[2])
    if command == "make":
        make(folder, int(sys.argv[3]), sys.argv[4:])
    else:
        {"choices": choices, "perplexity": perplexity}[command](folder)
