"""The Python side of tests/data/chat_template_test.cpp: chat_templates.py TEMPLATES OUT.

Writes the JSON file OUT: for each TEMPLATES/NAME.jinja a list of 200 chats, with the texts that transformers'
apply_chat_template gives of them, without and with the beginning of an answer.
"""

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

CHATS = 200
# Without system messages.
NO_SYSTEM = {"mistral-v0.1", "mistral-v0.2"}
# User and assistant in turn, after a system message.
IN_TURN = NO_SYSTEM | {"mistral", "llama2", "gemma3"}
PARTS = ["Hello", "what is 2 + 2?", " ", "\n", "\n\n", "\t", "\u00a0", "\u3000", "\x1c", "\u2028", "é", "漢字", "🙂", "'", '"',
         "\\n", "{{ x }}", "{% if %}", "<|im_end|>", "[INST]", "</s>", "<think>", "</think>", "<think>\nso\n</think>\n\n",
         "<tool_response>", "</tool_response>", "\r\n", "code:\n  a = 1\n"]


def content(draw):
    return "".join(draw.choice(PARTS) for _ in range(draw.randrange(8)))


def chat(name, draw):
    messages = []
    if name not in NO_SYSTEM and draw.random() < 0.5:
        messages.append({"role": "system", "content": content(draw)})
    turns = draw.randrange(1, 9)
    for turn in range(turns):
        role = ("user", "assistant")[turn % 2]
        if name not in IN_TURN and draw.random() < 0.2:
            role = draw.choice(["system", "user", "assistant"])
        messages.append({"role": role, "content": content(draw)})
    return messages


def main(folder, out):
    result = {}
    for path in sorted(Path(folder).glob("*.jinja")):
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>",
                                            chat_template=path.read_text(encoding="utf-8"))
        draw = random.Random(path.stem)
        chats = []
        for _ in range(CHATS):
            messages = chat(path.stem, draw)
            texts = [tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=begins,
                                                   date_string="26 Jul 2024") for begins in (False, True)]
            chats.append({"messages": messages, "text": texts[0], "prompt": texts[1]})
        result[path.stem] = chats
    Path(out).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
