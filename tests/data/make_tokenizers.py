"""Trains byte-level BPE tokenizers with Hugging Face's `tokenizers`, and writes FOLDER/NAME.json, FOLDER/texts.json and
FOLDER/NAME.ids.json: the ids of each text."""

import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

folder = pathlib.Path(sys.argv[1])
rng = random.Random(1)
base = ("The quick brown fox jumps over the lazy dog's 12 puppies; they'll bark, we've heard! Straße, naïve café — "
        "日本語のテキスト, Ελληνικά и русский. def f(x):\n\treturn x**2 + 3.14\n\n   \n end\u00a0of\u2003it \u0085 ok\r\n")
texts = [base, "", " ", "\n", "  two  spaces", "a<|endoftext|>b <|endoftext|>", "<|end<|endoftext|>", "x" * 500, "I'M CAN'T it's",
         "١٢٣ ½ Ⅷ 𝟘 ㊿", "🤖👩‍👩‍👧 e\u0301", "user name<sep><sep>", "\u180e \u2028\u2029\u3000\ufeff\x1c\x1f\x00\x7f"]
for _ in range(150):
    texts.append("".join(rng.choice(base) for _ in range(rng.randint(1, 60))))
# Every character that is assigned to a script, beside letters and spaces.
points = [point for point in range(0x20000) if not 0xD800 <= point < 0xE000]
for begin in range(0, 0x3400, 64):
    texts.append(" a1".join(chr(point) for point in points[begin:begin + 64]))

LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")
kinds = {
    "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "spaced": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "llama": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA), "isolated"),
                                      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
    "whole": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
}
for name, splitter in kinds.items():
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama"))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([base] * 3 + texts[-20:], trainer)
    tokenizer.add_tokens([AddedToken("<sep>", normalized=True), AddedToken("user name", normalized=True)])
    tokenizer.save(str(folder / f"{name}.json"))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    (folder / f"{name}.ids.json").write_text(json.dumps(ids))
(folder / "texts.json").write_text(json.dumps(texts))
