#!/usr/bin/env python3
"""Makes a checkpoint of random weights (verbatim synth) one that can be served: a tokenizer.json with a token a byte and the
tags of the chat format, and a chat template.

  make_byte_tokenizer.py DIR"""
import json
import pathlib
import shutil
import sys

TAGS = ("[gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> <|endoftext|> <think> </think> <tool_call> </tool_call> "
        "<arg_key> </arg_key> <arg_value> </arg_value> <tool_response> </tool_response>").split()


def vocabulary():
    """The characters that ByteLevel writes bytes as: printable ones stand for themselves, the others count from U+0100."""
    pieces, unprintable = {}, 0x100
    for byte in range(256):
        is_itself = 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE
        pieces[chr(byte if is_itself else unprintable)] = byte
        unprintable += not is_itself
    return pieces


def main():
    directory = pathlib.Path(sys.argv[1])
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": 256 + i, "content": tag, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": "|" in tag} for i, tag in enumerate(TAGS)]
    tokenizer = {"version": "1.0", "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level,
                 "model": {"type": "BPE", "vocab": vocabulary(), "merges": []}}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    root = pathlib.Path(__file__).resolve().parent.parent
    shutil.copyfile(root / "tests" / "fixtures" / "text" / "chat_template_tool_block.jinja", directory / "chat_template.jinja")


if __name__ == "__main__":
    main()
