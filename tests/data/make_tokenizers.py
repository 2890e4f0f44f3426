"""Trains tokenizers with Hugging Face's `tokenizers`, one of the configuration of each family of models, and writes
FOLDER/NAME.json, FOLDER/texts.json and FOLDER/NAME.answers.json.

    make_tokenizers.py FOLDER [TEXTS] [NAME...]

Answers are "texts": for each text its ids, its ids with special tokens, and what the latter decode to with special tokens
and without; "sequences": ids at random, and what they decode to, likewise.
"""

import json
import pathlib
import random
import sys
import unicodedata

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

folder = pathlib.Path(sys.argv[1])
text_count = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
rng = random.Random(7)

BASE = ("The quick brown fox jumps over the lazy dog's 12 puppies; they'll bark, we've heard! Straße, naïve café — "
        "日本語のテキスト, Ελληνικά и русский. def f(x):\n\treturn x**2 + 3.14\n\n   \n end\u00a0of\u2003it \u0085 ok\r\n")
LANGUAGES = [
    "Все люди рождаются свободными и равными в своём достоинстве и правах. ",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。", "人人生而自由，在尊严和权利上一律平等。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. ", "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. ",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. ",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। ",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi. ",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. ",
    "for (int i = 0; i < 100; ++i) {\n    total += values[i] * 2;\n}\n"
]
NAMES = [unicodedata.name(chr(point)).lower() for point in range(0x21, 0x3000) if unicodedata.name(chr(point), "")]
ASSIGNED = [point for point in range(0x110000) if unicodedata.category(chr(point)) not in ("Cn", "Cs", "Co")]
MARKS = [point for point in ASSIGNED if unicodedata.category(chr(point))[0] == "M"]
EMOJI = ["🤖", "👩‍👩‍👧", "🏳️‍🌈", "👍🏽", "🇩🇪", "1️⃣", "❤️", "\ufe0f", "\u200d"]
CONTROLS = [chr(point) for point in [*range(32), *range(0x7F, 0xA0)]] + [
    "\u200b", "\u2028", "\u2029", "\ufeff", "\u00ad", "\u180e", "\u200e", "\ufffd", "\ufffe", "\U0010ffff", "\ue000",
    "\U000e0001"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u3000", "\u2003", " \n ", "\x85", "\u1680"]
NUMBERS = ["1", "23", "456", "7890", "12345678", "3.14", "١٢٣", "½", "Ⅷ", "𝟘", "㊿", "²"]
WORDS = ["don't", "WE'LL", "I'M", "they've", "'S", "'\u017f", "x\u212a", "İstanbul", "ΣΊΣΥΦΟΣ", "ﬁne", "Ｆｕｌｌ", "ℌ", "①",
         "e\u0301", "é", "a\u0323\u0307", "a\u0307\u0323", "각", "\u1100\u1161\u11a8", "\uac00\u11a8", "が", "か\u3099",
         "Ωm", "Å", "\u212b", "\u0958", "\u2adc", "▁", "▁a", "__init__", "\u0344", "\u1e9b\u0323", "ǅ", "ŉ"]
ADDED = ["<|endoftext|>", "<s>", "</s>", "<pad>", "<mask>", "<word>", "<left>", "<right>", "Norm", "user name",
         "<|eot_id|>", "<unk>", "\n\n", "É<x>", "[INST]", "<0x0A>", "▁▁", "<mid dle>"]
# Where words begin and end is seen in ids if what belongs together is often beside what does not.
SEAMS = [*" \n\t\r'-a1_.", "'s", "'S", "'\u017f", "\u180e", "\u200b", "\u200d", "\ufeff", "\x85", "\xa0", "\u2028",
         "\u3000", "\u1680", "\x1c", "\x0b", "\u0301", "²", "½", "Ⅷ", "١", "é", "日", "ǅ", "ʰ", "ः", "⃝", "€", "🤖",
         "\ue000", "\u00ad", "\u2060", "\u0600"]


def seams(count):
    return ["".join(rng.choice(SEAMS) for _ in range(rng.randint(2, 5))) for _ in range(count)]


def piece():
    kinds = {
        16: lambda: rng.choice(NAMES)[:rng.randint(1, 30)],
        10: lambda: rng.choice(LANGUAGES)[:rng.randint(1, 40)],
        8: lambda: "".join(chr(rng.choice(ASSIGNED)) for _ in range(rng.randint(1, 6))),
        6: lambda: rng.choice("aeiucdnAEO\u0391\u0915") + "".join(chr(rng.choice(MARKS)) for _ in range(rng.randint(1, 4))),
        5: lambda: rng.choice(EMOJI),
        11: lambda: rng.choice(ADDED),
        7: lambda: rng.choice(CONTROLS),
        15: lambda: rng.choice(SPACES),
        9: lambda: rng.choice(NUMBERS),
        12: lambda: rng.choice(WORDS),
        2: lambda: rng.choice(["a", " ", "é", "日", "9", "=", "\u0301", "\n", "🤖", "the "]) * rng.randint(10, 120),
        4: lambda: BASE[rng.randrange(len(BASE)):][:rng.randint(1, 30)],
    }
    return rng.choices(list(kinds.values()), list(kinds))[0]()


def make_texts():
    texts = [BASE, "", " ", "\n", "  two  spaces", "▁", " ▁ ", "x" * 2000, " " * 2000, "a" + "\u0301\u0323" * 300,
             "日" * 700, "<0x41><0x", "<s><s> <s>", "a<mask> <mask>b", "a <mask>", "<left> b <left>", "the end ",
             "<|end<|endoftext|>"]
    texts += seams(text_count // 4)
    texts += [" a1".join(chr(point) for point in rng.sample(ASSIGNED, 40)) for _ in range(text_count // 8)]
    texts += ["".join(chr(point) for point in ASSIGNED[begin:begin + 64])
              for begin in range(0, len(ASSIGNED), 64)][:text_count // 8]
    while len(texts) < text_count:
        texts.append("".join(piece() + rng.choice([" ", "", "", ""]) for _ in range(rng.randint(1, 12))))
    return texts[:text_count]


CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
EXTRA = [AddedToken("<mask>", lstrip=True, special=True), AddedToken("<left>", lstrip=True, normalized=False),
         AddedToken("<right>", rstrip=True, normalized=False), AddedToken("<word>", single_word=True, normalized=False),
         AddedToken("Norm", normalized=True), AddedToken("user name", normalized=True, single_word=True),
         AddedToken("É<x>", normalized=True), AddedToken("<|eot_id|>", special=True),
         AddedToken("<mid dle>", normalized=True, special=True)]


def split(expression):
    return pre_tokenizers.Split(Regex(expression), "isolated")


def byte_level(*steps, add_prefix_space=False, use_regex=False):
    level = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)
    return pre_tokenizers.Sequence([*steps, level]) if steps else level


def template(single):
    ids = [(token, id) for id, token in enumerate(["<unk>", "<s>", "</s>"])]
    return processors.TemplateProcessing(single=single, pair=f"{single} $B", special_tokens=ids)


def byte_decoder(*last):
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last])


BOS = template("<s> $A")
BYTE_POST = processors.ByteLevel(trim_offsets=False)
STRIP = decoders.Strip(" ", 1, 0)
# Options of a model; normalizer, pre_tokenizer, post_processor and decoder (byte-level where there is none).
KINDS = {
    "gpt2": dict(pre=byte_level(use_regex=True), post=BYTE_POST, seams=True),
    "roberta": dict(pre=byte_level(add_prefix_space=True, use_regex=True),
                    post=processors.RobertaProcessing(("</s>", 2), ("<s>", 1))),
    "llama3": dict(ignore_merges=True, pre=byte_level(split(CL100K)), post=processors.Sequence([BYTE_POST, BOS])),
    "qwen2": dict(norm=normalizers.NFC(), pre=byte_level(split(CL100K.replace("{1,3}", ""))), post=BYTE_POST, seams=True),
    "olmo2": dict(pre=byte_level(split(CL100K)), seams=True),
    "smollm": dict(pre=byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True)),
    "whole": dict(pre=byte_level()),
    "late": dict(pre=pre_tokenizers.Sequence([byte_level(add_prefix_space=True, use_regex=True),
                                              pre_tokenizers.Digits(individual_digits=True)])),
    "llama2": dict(fallback=True, post=BOS, decoder=byte_decoder(STRIP),
                   norm=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])),
    "mistral": dict(fallback=True, pre=pre_tokenizers.Metaspace(prepend_scheme="first", split=False), post=BOS,
                    decoder=byte_decoder(STRIP)),
    "gemma": dict(fallback=True, norm=normalizers.Replace(" ", "▁"),
                  pre=pre_tokenizers.Split(" ", "merged_with_previous"), post=BOS, decoder=byte_decoder(),
                  extra=[AddedToken("\n\n", normalized=False), AddedToken("▁▁", normalized=False)]),
    "behaviors": dict(unknown=True, decoder=decoders.Metaspace(),
                      norm=normalizers.Sequence([normalizers.Strip(True, True), normalizers.NFKC(),
                                                 normalizers.Lowercase(), normalizers.Replace(Regex(r"\d{4,}"), "#"),
                                                 normalizers.Replace("x", "")]),
                      pre=pre_tokenizers.Sequence([
                          pre_tokenizers.Split(Regex(r"[,.;]"), "merged_with_previous"),
                          pre_tokenizers.Split("-", "merged_with_next"),
                          pre_tokenizers.Split(Regex(r"\s*\n"), "contiguous"), split(r"(?=b)"), split(r"\w\h"),
                          pre_tokenizers.Metaspace()])),
    "first": dict(unknown=True, decoder=decoders.Metaspace(prepend_scheme="first"),
                  norm=normalizers.Sequence([normalizers.Strip(), normalizers.Replace("ab", "x"), normalizers.NFKC()]),
                  pre=pre_tokenizers.Metaspace(prepend_scheme="first")),
    "words": dict(unknown=True, norm=normalizers.NFKD(), decoder=None,
                  pre=pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits()])),
    "removed": dict(unknown=True, fuse_unk=True, norm=normalizers.NFD(), decoder=decoders.Fuse(),
                    pre=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                                 pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}"), "removed", invert=True)])),
    "t5": dict(unigram=True, norm=normalizers.NFKC(), decoder=decoders.Metaspace(), post=template("$A </s>"),
               pre=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])),
    "xlmr": dict(unigram=True, pre=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace(), post=template("<s> $A </s>"),
                 norm=normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])),
    "unigram_bytes": dict(unigram=True, fallback=True, norm=normalizers.Replace(" ", "▁"), decoder=byte_decoder(STRIP)),
}


def make_tokenizer(kind):
    fallback = kind.get("fallback", False)
    special = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<pad>"] + (BYTES if fallback else [])
    if kind.get("unigram"):
        model = models.Unigram()
        trainer = trainers.UnigramTrainer(vocab_size=1500, special_tokens=special, unk_token="<unk>", show_progress=False)
    else:
        model = models.BPE(unk_token="<unk>" if fallback or kind.get("unknown") else None, byte_fallback=fallback,
                           fuse_unk=fallback or kind.get("fuse_unk", False),
                           ignore_merges=kind.get("ignore_merges", False))
        alphabet = [] if "decoder" in kind else pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=special, initial_alphabet=alphabet,
                                      limit_alphabet=400, max_token_length=16, show_progress=False)
    tokenizer = Tokenizer(model)
    if "norm" in kind:
        tokenizer.normalizer = kind["norm"]
    # Words are split for training, as SentencePiece does it, where a text is one word later.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never") if fallback else kind["pre"]
    corpus = [BASE] * 20 + LANGUAGES * 20 + [" ".join(rng.sample(NAMES, 12)) for _ in range(300)]
    tokenizer.train_from_iterator(seams(20000) if kind.get("seams") else corpus, trainer)
    file = json.loads(tokenizer.to_str())
    file["pre_tokenizer"] = None
    file["added_tokens"] = [token for token in file["added_tokens"] if token["content"] not in BYTES]
    if fallback and not kind.get("unigram"):  # runs of spaces, as real ones have them
        vocab = file["model"]["vocab"]
        for count in (2, 3, 4):
            vocab.setdefault("▁" * count, max(vocab.values()) + 1)
        file["model"]["merges"] += [["▁", "▁"], ["▁▁", "▁"], ["▁▁", "▁▁"]]
    tokenizer = Tokenizer.from_str(json.dumps(file))
    if "pre" in kind:
        tokenizer.pre_tokenizer = kind["pre"]
    tokenizer.decoder = kind.get("decoder", decoders.ByteLevel()) or decoders.Fuse()
    if "post" in kind:
        tokenizer.post_processor = kind["post"]
    tokenizer.add_special_tokens([token for token in EXTRA if token.special])
    tokenizer.add_tokens([token for token in EXTRA if not token.special] + kind.get("extra", []))
    file = json.loads(tokenizer.to_str())
    if kind.get("decoder", True) is None:
        file["decoder"] = None
    return file


def random_ids(tokenizer, has_bytes):
    size = tokenizer.get_vocab_size()
    if has_bytes and rng.random() < 0.5:  # bytes of characters, whole and not
        first = tokenizer.token_to_id("<0x00>")
        return [first + byte for _ in range(rng.randint(1, 3)) for byte in rng.choice(["€", "é", "a", "🤖"]).encode()[:rng.randint(1, 4)]]
    return [rng.randrange(size + 3) for _ in range(rng.randint(1, 12))]


texts = make_texts()
(folder / "texts.json").write_text(json.dumps(texts))
for name in sys.argv[3:] or KINDS:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(make_tokenizer(KINDS[name]), ensure_ascii=False))
    tokenizer = Tokenizer.from_file(str(path))
    answers = {"texts": [], "sequences": []}
    for text in texts:
        ids = tokenizer.encode(text).ids
        answers["texts"].append([tokenizer.encode(text, add_special_tokens=False).ids, ids,
                                 tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids)])
    for _ in range(text_count // 4):
        ids = random_ids(tokenizer, KINDS[name].get("fallback"))
        answers["sequences"].append([ids, tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids)])
    (folder / f"{name}.answers.json").write_text(json.dumps(answers))
