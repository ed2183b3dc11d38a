#!/usr/bin/env python3
"""Writes tests/fixtures/text/tokenizer.json and vectors.json: a small tokenizer in the released configuration and what
Hugging Face `tokenizers` makes of texts with it.

    python3 scripts/make_tokenizer_fixture.py      (pip install tokenizers==0.22.2; reads the same Debian packages as
                                                    scripts/oracle_tokenizer.py, so another system trains other merges)
"""
import json
import os
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from oracle_tokenizer import ORDINARY, SPECIAL, random_string, read_corpora, train  # noqa: E402

from tokenizers import AddedToken, Tokenizer  # noqa: E402

ENTRIES = 3000
WRITTEN = [
    "", " ", "Hello, world!", "It's 12345 o'clock; we'LL see. I'\u017f", "  two  spaces\n\n  and lines\r\n\r\n\tend  ",
    "for (int i = 0; i < 10; ++i) {\n    sum += data[i];\n}\n", "\u00c4rger \u00fcber Stra\u00dfenb\u00e4ume", "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u05e9\u05dc\u05d5\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\uc548\ub155\ud558\uc138\uc694",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd\u2764\ufe0f", "[gMASK]<sop><|user|>Hi<|assistant|><think>a</think>b", "<|user|", "<<think>>", "</think", "/nothink",
    "<tool_call>f<arg_key>k</arg_key><arg_value>1</arg_value></tool_call>", "a" * 100, "ab" * 300, "\u4e2d" * 200, " " * 77 + "x",
    "\n" * 50, "=" * 129, "0" * 10, "\u0301\u0301e\u0301", "\ufeffBOM", "\u180e \u200b\u2028\u2029\u0085x", "\U000323af\U00011f02\U0001e4d0",
]


def flags_tokenizer(base):
    """The same pieces, other flags: what single_word, lstrip, rstrip and normalized do."""
    described = json.loads(base.to_str())
    described["added_tokens"] = []
    described["model"]["ignore_merges"] = False
    tokenizer = Tokenizer.from_str(json.dumps(described))
    tokenizer.add_tokens([
        AddedToken("<w>", single_word=True, normalized=False), AddedToken("<l>", lstrip=True, normalized=False),
        AddedToken("<r>", rstrip=True, normalized=False), AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("l>x", normalized=True), AddedToken("<w", normalized=True), AddedToken("word", single_word=True, normalized=True),
        AddedToken("longer", normalized=False), AddedToken("longer word", normalized=False)])
    return tokenizer


def flag_texts(r):
    parts = ["<w>", "<l>", "<r>", "<lr>", "x", " ", "  ", "\n", "\u3000", "\u00e9", "_", "-", "word", "longer", "longer word", "\u0301", "9"]
    return ["".join(r.choice(parts) for _ in range(r.randrange(2, 9))) for _ in range(200)]


def main():
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    folder = pathlib.Path(__file__).parent.parent / "tests/fixtures/text"
    corpora = read_corpora()
    tokenizer = train([t[:20000] for texts in corpora.values() for t in texts[:40]], ENTRIES)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n")

    r = random.Random(7)
    texts = WRITTEN + [random_string(r) for _ in range(160)]
    described = json.loads(tokenizer.to_str())
    described["added_tokens"] = []
    plain, flags = Tokenizer.from_str(json.dumps(described)), flags_tokenizer(tokenizer)
    vectors = {
        "texts": [{"text": t, "on": tokenizer.encode(t, add_special_tokens=False).ids,
                   "off": plain.encode(t, add_special_tokens=False).ids} for t in texts],
        "flags": {"added_tokens": json.loads(flags.to_str())["added_tokens"],
                  "texts": [{"text": t, "ids": flags.encode(t, add_special_tokens=False).ids} for t in flag_texts(r)]},
    }
    (folder / "vectors.json").write_text(json.dumps(vectors, separators=(",", ":")) + "\n")
    assert len(SPECIAL) + len(ORDINARY) == 36


if __name__ == "__main__":
    main()
