#!/usr/bin/env python3
"""Makes FOLDER for a small model that is to learn a text: a tokenizer.json of the text (byte-level BPE) and the config.json of
a Llama of 3 million parameters.

    .deps/test-venv/bin/python examples/language_model/new_model.py bible.txt small
"""

import argparse
import json
import pathlib

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("text", type=pathlib.Path)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--vocabulary", type=int, default=2048, help="tokens, the 256 bytes and the end of a text included")
parser.add_argument("--width", type=int, default=192)
parser.add_argument("--layers", type=int, default=6)
arguments = parser.parse_args()

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train([str(arguments.text)], trainers.BpeTrainer(
    vocab_size=arguments.vocabulary, special_tokens=["<|endoftext|>"], show_progress=False,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
arguments.folder.mkdir(parents=True, exist_ok=True)
tokenizer.save(str(arguments.folder / "tokenizer.json"))
(arguments.folder / "tokenizer_config.json").write_text(json.dumps({
    "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}))
(arguments.folder / "config.json").write_text(json.dumps({
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": tokenizer.get_vocab_size(),
    "hidden_size": arguments.width,
    "intermediate_size": 3 * arguments.width,
    "num_hidden_layers": arguments.layers,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 0,
}, indent=2))
print(f"{tokenizer.get_vocab_size()} tokens in {arguments.folder}")
