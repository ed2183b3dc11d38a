#!/usr/bin/env python3
"""Holds Verbatim's tokenizer to Hugging Face `tokenizers`: same ids, same text back, and how fast each is.

Trains byte-level BPE in the released configuration on text of Debian packages and compares tests/text/tokenizer_driver
with it. Needs `pip install tokenizers==0.22.2`; exits 77 (skipped) without. Steps, all by default:

    corpora   same ids and same text back on every corpus file, at every vocabulary size, merges in both spellings
    long      the same on texts of up to 1 MB that hardly split
    strings   the same on random Unicode strings, added tokens on and off
    flags     random tokenizers with every flag of added tokens, ignore_merges on and off, other pre-tokenizers
    bytes     decode(encode(x)) == x on random bytes
    classes   the code points that PCRE2 and `tokenizers` class differently
    splits    the released pattern's own matcher against PCRE2 on the same random strings
    speed     one thread against one thread, and adversarial input at 100 kB, 1 MB and 10 MB

    scripts/oracle_tokenizer.py --driver build/release/tests/text/tokenizer_driver [--steps corpora,speed]
"""
import argparse
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
try:
    import tokenizers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
except ImportError:
    print("tokenizers is not installed (pip install tokenizers==0.22.2)")
    sys.exit(77)

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
SPECIAL = ("<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|> "
           "<|begin_of_image|> <|end_of_image|> <|begin_of_video|> <|end_of_video|> <|begin_of_audio|> <|end_of_audio|> "
           "<|begin_of_transcription|> <|end_of_transcription|>").split()
ORDINARY = ("<|code_prefix|> <|code_middle|> <|code_suffix|> <think> </think> <tool_call> </tool_call> <tool_response> "
            "</tool_response> <arg_key> </arg_key> <arg_value> </arg_value> /nothink <|begin_of_box|> <|end_of_box|> "
            "<|image|> <|video|>").split()
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# name: (globs, most bytes). Package names in docs/tokenizer.md.
CORPORA = {
    "english": (["/usr/share/man/man[2578]/*.gz", "/usr/share/doc/*/copyright", "/usr/share/doc/*/README*"], 12_000_000),
    "german": (["/usr/share/man/de/*/*.gz"], 12_000_000),
    "french": (["/usr/share/man/fr/*/*.gz"], 8_000_000),
    "spanish": (["/usr/share/man/es/*/*.gz"], 6_000_000),
    "polish": (["/usr/share/man/pl/*/*.gz"], 4_000_000),
    "russian": (["/usr/share/man/ru/*/*.gz"], 8_000_000),
    "ukrainian": (["/usr/share/man/uk/*/*.gz"], 6_000_000),
    "greek": (["/usr/share/man/el/*/*.gz", "/usr/share/man/*/el/*"], 4_000_000),
    "japanese": (["/usr/share/man/ja/*/*.gz"], 12_000_000),
    "chinese": (["/usr/share/man/zh_*/*/*.gz"], 12_000_000),
    "vietnamese_turkish": (["/usr/share/man/vi/*/*.gz", "/usr/share/man/tr/*/*.gz"], 6_000_000),
    "words": (["/usr/share/hunspell/[a-z][a-z]_[A-Z][A-Z].dic"], 24_000_000),
    "c": (["/usr/include/*.h", "/usr/include/linux/*.h", "/usr/include/c++/*/**/*.h"], 10_000_000),
    "python": (["/usr/lib/python3*/**/*.py"], 14_000_000),
}


def read_corpora():
    import glob
    import gzip
    corpora = {}
    for name, (globs, limit) in CORPORA.items():
        texts, total, seen = [], 0, set()
        for path in sorted({p for g in globs for p in glob.glob(g, recursive=True)}):
            real = os.path.realpath(path)
            if real in seen or not os.path.isfile(real):
                continue
            seen.add(real)
            try:
                raw = gzip.open(real).read() if real.endswith(".gz") else open(real, "rb").read()
                text = raw.decode("utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            if name == "words":
                text = "\n".join(line.split("/")[0] for line in text.split("\n")[:60000])
            if total + len(raw) > limit:
                continue
            total += len(text.encode())
            texts.append(text)
        corpora[name] = texts
        print(f"corpus {name}: {len(texts)} files, {total / 1e6:.1f} MB")
    return corpora


def configured(model):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(texts, size):
    tokenizer = configured(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=[],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    described = json.loads(tokenizer.to_str())
    described["model"]["ignore_merges"] = True
    tokenizer = Tokenizer.from_str(json.dumps(described))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in ORDINARY])
    return tokenizer


def with_string_merges(text):
    described = json.loads(text)
    described["model"]["merges"] = [f"{a} {b}" for a, b in described["model"]["merges"]]
    return json.dumps(described, ensure_ascii=False)


# Characters by kind, for random strings.
KINDS = [
    lambda r: chr(r.randrange(0x20, 0x7F)),
    lambda r: r.choice("abcdefghijklmnopqrstuvwxyzABC     "),
    lambda r: r.choice(" \t\n\r\v\f\x85\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u180e\u200b\ufeff"),
    lambda r: r.choice(["'s", "'S", "'\u017f", "'re", "'lL", "'vE", "'d", "'", "\u2019s", "'\u212a"]),
    lambda r: r.choice("0123456789\u0660\u06f5\u0967\u00b2\u00bd\u2167\u3007\uff15\U0001d7d8"),
    lambda r: chr(r.randrange(0x00, 0x20)),
    lambda r: chr(r.randrange(0x7F, 0xA1)),
    lambda r: chr(r.randrange(0x300, 0x370)),
    lambda r: "e" + chr(r.randrange(0x300, 0x370)) * r.randrange(1, 4),
    lambda r: chr(r.randrange(0x590, 0x700)),
    lambda r: r.choice("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"),
    lambda r: chr(r.randrange(0x900, 0xE80)),
    lambda r: chr(r.randrange(0x4E00, 0xA000)),
    lambda r: chr(r.randrange(0x3040, 0x3100)),
    lambda r: chr(r.randrange(0xAC00, 0xD7A4)),
    lambda r: r.choice(["\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea",
                        "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001f3f4\U000e0067\U000e0062\U000e007f"]),
    lambda r: chr(r.randrange(0x1F300, 0x1FB00)),
    lambda r: chr(r.randrange(0xE000, 0x10000)),
    lambda r: chr(r.randrange(0x10000, 0x30000)),
    lambda r: chr(r.randrange(0x30000, 0x110000)),
    lambda r: r.choice(SPECIAL + ORDINARY),
    lambda r: r.choice(SPECIAL + ORDINARY)[:-1],
    lambda r: r.choice(["<|", "|>", "<", "</", "<<think>", "\r\n", "\n\n", "   ", "  \n  "]),
]


def random_string(r):
    if r.random() < 0.1:  # any scalar value
        return "".join(chr(c) for c in (r.randrange(0x110000) for _ in range(r.randrange(1, 30))) if not 0xD800 <= c < 0xE000)
    kinds = r.sample(KINDS, r.randrange(1, 6))
    return "".join(r.choice(kinds)(r) for _ in range(r.randrange(1, 60)))


def pack(arrays):
    return b"".join(struct.pack("<I", len(a)) + a for a in arrays)


class Driver:
    def __init__(self, path, work):
        self.path, self.work = path, work

    def run(self, arguments, data=b""):
        done = subprocess.run([self.path, *map(str, arguments)], input=data, stdout=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise SystemExit(f"driver {arguments} exited with {done.returncode}")
        return done.stdout

    @staticmethod
    def arrays(data, code):
        position, width = 0, struct.calcsize(code)
        while position < len(data):
            (count,) = struct.unpack_from("<I", data, position)
            yield list(struct.unpack_from(f"<{count}{code}", data, position + 4))
            position += 4 + count * width

    def encode(self, file, texts, added=True):
        return list(self.arrays(self.run(["encode", file, "on" if added else "off"], pack(texts)), "i"))

    def decode(self, file, ids):
        data, texts, position = self.run(["decode", file], b"".join(
            struct.pack(f"<I{len(i)}i", len(i), *i) for i in ids)), [], 0
        while position < len(data):
            (count,) = struct.unpack_from("<I", data, position)
            texts.append(data[position + 4:position + 4 + count])
            position += 4 + count
        return texts

    def splits(self, pattern, matcher, texts):
        return list(self.arrays(self.run(["splits", pattern, matcher], pack(texts)), "I"))


def compare(driver, file, tokenizer, texts, label, added=True, round_trip=True):
    encoded = [t.encode() for t in texts]
    ours = driver.encode(file, encoded, added)
    count = 0
    for first in range(0, len(texts), 2000):
        theirs = tokenizer.encode_batch(texts[first:first + 2000], add_special_tokens=False)
        for i, encoding in enumerate(theirs):
            count += len(encoding.ids)
            if encoding.ids != ours[first + i]:
                show(texts[first + i], encoding.ids, ours[first + i], tokenizer)
                raise SystemExit(f"{label}: text {first + i} differs")
    if round_trip:
        back = driver.decode(file, ours)
        wrong = [i for i, text in enumerate(encoded) if back[i] != text]
        if wrong:
            raise SystemExit(f"{label}: text {wrong[0]} does not come back: {encoded[wrong[0]]!r} {back[wrong[0]]!r}")
    size = sum(map(len, encoded))
    print(f"{label}: {len(texts)} texts, {size / 1e6:.1f} MB, {count} ids: all equal"
          + (", every text came back" if round_trip else ""))


def show(text, theirs, ours, tokenizer):
    at = next((i for i, (a, b) in enumerate(zip(theirs, ours)) if a != b), min(len(theirs), len(ours)))
    around = slice(max(0, at - 3), at + 5)
    print(f"text {text[:200]!r}\nfirst difference at token {at}")
    for name, ids in (("tokenizers", theirs), ("verbatim", ours)):
        print(f"  {name}: {[(i, tokenizer.id_to_token(i)) for i in ids[around]]}")


class Oracle:
    def __init__(self, arguments):
        self.driver = Driver(arguments.driver, arguments.work)
        self.work, self.sizes, self.count = arguments.work, arguments.sizes, arguments.strings
        self.work.mkdir(parents=True, exist_ok=True)
        self.corpora, self.trained = None, {}

    def load_corpora(self):
        if self.corpora is None:
            self.corpora = read_corpora()
        return self.corpora

    def tokenizer(self, size):
        """(file, tokenizer), trained on the first use and kept in the work folder."""
        if size not in self.trained:
            file = self.work / f"tokenizer_{size}.json"
            if not file.exists():
                start = time.time()
                tokenizer = train([t for texts in self.load_corpora().values() for t in texts], size)
                tokenizer.save(str(file), pretty=False)
                print(f"trained {tokenizer.get_vocab_size(False)} entries in {time.time() - start:.0f} s")
            self.trained[size] = (file, Tokenizer.from_file(str(file)))
        return self.trained[size]

    def random_strings(self):
        r = random.Random(20)
        return [random_string(r) for _ in range(self.count)]

    def step_corpora(self):
        for size in self.sizes:
            file, tokenizer = self.tokenizer(size)
            strings = self.work / f"tokenizer_{size}_strings.json"
            strings.write_text(with_string_merges(file.read_text()))
            for name, texts in self.load_corpora().items():
                compare(self.driver, file, tokenizer, texts, f"{size} entries, {name}")
            compare(self.driver, strings, tokenizer, self.corpora["chinese"], f"{size} entries, merges as strings, chinese")

    def step_long(self):
        r = random.Random(24)
        letters = "abcdefghijklmnopqrstuvwxyz"
        texts = ["".join(r.choices(letters, k=1_000_000)), "".join(self.load_corpora()["python"])[:400_000].replace(" ", "").replace("\n", "")]
        texts += [unit * (1_000_000 // len(unit)) for unit in ("a", "ab", "\u4e2d", "\u4e2d\u6587", "=", "<|", "-=", "\n", " \n", "7", "\u0301")]
        texts += ["".join(r.choices("et", k=500_000)), " " * 200_000 + "x", "".join(r.choices("=-*#/", k=500_000))]
        for size in self.sizes:
            file, tokenizer = self.tokenizer(size)
            compare(self.driver, file, tokenizer, texts, f"{size} entries, long texts without a break")

    def step_strings(self):
        texts = self.random_strings()
        for size in self.sizes:
            file, tokenizer = self.tokenizer(size)
            compare(self.driver, file, tokenizer, texts, f"{size} entries, random strings, added tokens on")
            described = json.loads(file.read_text())
            described["added_tokens"] = []
            compare(self.driver, file, Tokenizer.from_str(json.dumps(described)), texts,
                    f"{size} entries, random strings, added tokens off", added=False)

    def step_flags(self):
        r = random.Random(21)
        base = json.loads(self.tokenizer(self.sizes[0])[0].read_text())
        base["added_tokens"] = []
        contents = ["<a>", "<a>b", "<", "foo", "foobar", "bar", "ba", " x", "\u00e9t\u00e9 ", "\u4e2d", "a b", "[M]", "_", "1"]
        alphabet = contents + [" ", "  ", "\n", "\t", "\u3000", "_", "-", "f", "o", "ob", "\u0301", "\u0d4d", "9", "\u200d", "\U0001f600"]
        total = 0
        for trial in range(300):
            described = json.loads(json.dumps(base))
            described["model"]["ignore_merges"] = r.random() < 0.5
            if r.random() < 0.3:
                described["pre_tokenizer"] = r.choice([
                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                    {"type": "Sequence", "pretokenizers": [
                        {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}"}, "behavior": "Isolated", "invert": False},
                        {"type": "Split", "pattern": {"Regex": "[\u4e00-\u9fa5\u3040-\u309f]+"}, "behavior": "Isolated", "invert": False},
                        {"type": "Split", "pattern": {"String": "o"}, "behavior": "Isolated", "invert": True},
                        {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
                        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}])
            tokenizer = Tokenizer.from_str(json.dumps(described))
            for content in r.sample(contents, r.randrange(1, 8)):
                flags = {f: r.random() < 0.4 for f in ("single_word", "lstrip", "rstrip", "normalized")}
                # A piece of the vocabulary may be an added token, but not a special one (docs/tokenizer.md).
                special = r.random() < 0.3 and tokenizer.token_to_id(content) is None
                (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(
                    [AddedToken(content, special=special, **flags)])
            file = self.work / "flags.json"
            tokenizer.save(str(file))
            texts = ["".join(r.choice(alphabet) for _ in range(r.randrange(1, 14))) for _ in range(200)]
            # Through the pre-tokenizer alone the piece of a single byte can be an added token: ordinary text gives it too.
            ours = self.driver.encode(file, [t.encode() for t in texts])
            for text, mine, encoding in zip(texts, ours, tokenizer.encode_batch(texts, add_special_tokens=False)):
                total += 1
                if encoding.ids != mine:
                    show(text, encoding.ids, mine, tokenizer)
                    raise SystemExit(f"flags: trial {trial} differs on {text!r}; see {file}")
        print(f"flags: {total} texts through 300 tokenizers: all equal")

    def step_bytes(self):
        file, _ = self.tokenizer(self.sizes[0])
        r = random.Random(22)
        texts = []
        for _ in range(self.count // 4):
            text = bytearray(random_string(r).encode())
            for _ in range(r.randrange(4)):
                position = r.randrange(len(text)) if text else 0
                text[position:position + r.randrange(2)] = bytes(r.randrange(256) for _ in range(r.randrange(4)))
            texts.append(bytes(text))
        invalid = sum(1 for t in texts if t.decode("utf-8", "replace").encode() != t)
        for added in (True, False):
            back = self.driver.decode(file, self.driver.encode(file, texts, added))
            if back != texts:
                raise SystemExit("bytes: a text does not come back")
        print(f"bytes: {len(texts)} texts, {invalid} of them invalid UTF-8: every one came back")

    def differing(self):
        theirs, ours = {}, {}
        code_points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
        for pattern in (r"\p{L}", r"\p{N}", r"\s"):
            split = pre_tokenizers.Split(Regex(pattern), "isolated")
            for i in range(0, len(code_points), 8192):
                chunk = code_points[i:i + 8192]
                text = "".join(chr(c) + ("A" if pattern != r"\p{L}" else "1") for c in chunk)
                cuts = {end for _, (_, end) in split.pre_tokenize_str(text)}
                for k, c in enumerate(chunk):
                    if 2 * k + 1 in cuts:
                        theirs.setdefault(pattern, set()).add(c)
                raw = text.encode()
                ends = set(self.driver.splits(pattern, "pcre2", [raw])[0])
                position = 0
                for c in chunk:
                    position += len(chr(c).encode())
                    if position in ends:
                        ours.setdefault(pattern, set()).add(c)
                    position += 1
        return {p: (theirs[p] - ours[p], ours[p] - theirs[p]) for p in theirs}

    def step_classes(self):
        for pattern, (only_theirs, only_ours) in self.differing().items():
            print(f"classes: {pattern}: {len(only_theirs)} only in tokenizers {tokenizers.__version__}: {ranges(only_theirs)}")
            print(f"classes: {pattern}: {len(only_ours)} only in PCRE2: {ranges(only_ours)}")

    def step_splits(self):
        differing = {chr(c) for pair in self.differing().values() for group in pair for c in group}
        texts = [t for t in self.random_strings() if not differing.intersection(t)]
        encoded = [t.encode() for t in texts]
        if self.driver.splits(PATTERN, "fast", encoded) != self.driver.splits(PATTERN, "pcre2", encoded):
            raise SystemExit("splits: the matcher and PCRE2 differ")
        print(f"splits: {len(texts)} random strings without the {len(differing)} differing code points: cut equally")

    def step_speed(self):
        size = self.sizes[-1]
        file, tokenizer = self.tokenizer(size)
        corpora = self.load_corpora()

        def documents(*names):
            return [t for name in names for t in corpora[name]]

        cases = [("prose: english", documents("english"), 3), ("prose: german, russian, french", documents("german", "russian", "french"), 3),
                 ("prose: chinese, japanese", documents("chinese", "japanese"), 3), ("code: C", documents("c"), 3),
                 ("code: Python", documents("python"), 3)]
        r = random.Random(23)
        for label, unit in (("one word of random letters", None), ("one letter repeated", "a"), ("spaces, then a letter", " "),
                            ("line ends", "\n"), ("'<|' repeated", "<|"), ("'=' repeated", "="), ("digits", "7"), ("' \\n' repeated", " \n")):
            for length in (100_000, 1_000_000, 10_000_000):
                text = unit * (length // len(unit)) if unit else "".join(r.choices("abcdefghijklmnopqrstuvwxyz", k=length))
                cases.append((label, [text + "x" if label.startswith("spaces") else text], 1 if length > 1_000_000 else 2))
        print(f"speed, {size} entries, CPU time of one thread, best of 3 (adversarial: of 2; 10 MB: one pass):")
        for label, texts, repeats in cases:
            data = pack([t.encode() for t in texts])
            ours, theirs = [], []
            for _ in range(repeats):
                seconds, count = self.driver.run(["time", file], data).split()
                ours.append(float(seconds))
                theirs.append(self.their_seconds(tokenizer, texts, int(count), label))
            mb = len(data) / 1e6
            compared = "tokenizers gives up" if None in theirs else (
                f"tokenizers {min(theirs) * 1e3:9.1f} ms ({mb / min(theirs):5.2f} MB/s)  {min(theirs) / min(ours):5.1f} times")
            print(f"  {label:31} {mb:6.2f} MB  verbatim {min(ours) * 1e3:8.1f} ms ({mb / min(ours):6.1f} MB/s)  {compared}", flush=True)

    @staticmethod
    def their_seconds(tokenizer, texts, count, label):
        start = time.process_time()
        try:
            encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except BaseException as error:  # Rust's panic: "retry-limit-in-match over" of Oniguruma
            if isinstance(error, KeyboardInterrupt):
                raise
            return None
        seconds = time.process_time() - start
        if sum(len(e.ids) for e in encodings) != count:
            raise SystemExit(f"speed: {label}: {count} ids by verbatim, not as many by tokenizers")
        return seconds


def ranges(code_points):
    out = []
    for c in sorted(code_points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return " ".join(f"{a:04X}" if a == b else f"{a:04X}-{b:04X}" for a, b in out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/oracle_tokenizer"))
    parser.add_argument("--sizes", type=lambda s: [int(x) for x in s.split(",")], default=[2000, 32000, 150000])
    parser.add_argument("--strings", type=int, default=200_000)
    parser.add_argument("--steps", default="corpora,long,strings,flags,bytes,classes,splits,speed")
    arguments = parser.parse_args()
    oracle = Oracle(arguments)
    for step in arguments.steps.split(","):
        getattr(oracle, f"step_{step}")()
    print("tokenizer oracle: all steps passed")


if __name__ == "__main__":
    main()
