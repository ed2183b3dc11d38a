#!/usr/bin/env python3
"""Compares the grammars of src/text/grammar with xgrammar (which texts a schema or regex takes, which tokens may come
next) and holds random replies to jsonschema.

    python3 scripts/oracle_grammar.py check --driver build/release/tests/text/grammar_driver
    python3 scripts/oracle_grammar.py write --driver ...      also writes tests/fixtures/text/grammar_vectors.json

pip install xgrammar==0.2.9 "jsonschema[format-nongpl]==4.26.0". Exit status 77 if they are missing.
"""
import argparse
import codecs
import json
import pathlib
import random
import re
import subprocess
import sys

try:
    import jsonschema
    import xgrammar
    from xgrammar.testing import _is_grammar_accept_string
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

ROOT = pathlib.Path(__file__).parent.parent
I, S, B, N, X = ({"type": kind} for kind in ("integer", "string", "boolean", "null", "number"))


def obj(required=None, more=None, **properties):
    out = {"type": "object", "properties": properties}
    if required is None or required:
        out["required"] = list(properties) if required is None else required
    out.update(more or {})
    return out


def arr(items=None, **more):
    return {"type": "array", **({} if items is None else {"items": items}), **more}


# A schema, and values or texts to try beside those that are made from replies.
SCHEMAS = [
    (I, [0, -1, 10, "01", "-0", "1.0", "1e2", "+1", "-", "", "1 "]), (X, [0.5, -0.25, "1e5", "1E+2", ".5", "1.", "00", "-"]),
    (S, ["a", "é中😀", "\n\"\\", '"\\u00e9"', '"\\ud83d\\ude00"', '"\\x"', '"a\nb"', '"', '"a"b"']), (B, [True, "tru", "True"]), (N, [None, "nul"]),
    ({"type": "object"}, [{}, {"a": [1, {"b": None}]}, "{\"a\":}", "{a:1}"]), (arr(), [[], [1, "x", [None]], "[1,]", "[,]"]),
    ({"type": ["string", "integer"]}, ["x", 3, None]), ({"enum": ["a", "ab", 1, None, True, 2.5]}, ["a", "ab", "b", 1, None, True, False, 2.5]),
    ({"const": "only"}, ["only", "onl", 1]), ({"const": {"a": [1, 2]}}, [{"a": [1, 2]}, {"a": [1]}]),
    (obj(a=I), [{"a": 1}, {}, {"a": "1"}, {"a": 1, "b": 2}]), (obj([], a=I, b=S, c=B), [{}, {"a": 1}, {"b": "x"}, {"c": True}, {"a": 1, "c": False}, '{"c": true, "a": 1}']),
    (obj(["b"], a=I, b=S, c=B), [{"b": "x"}, {"a": 1, "b": ""}, {"a": 1}, {"b": "", "c": True}]),
    (obj(["a"], {"additionalProperties": True}, a=I), [{"a": 1}, {"a": 1, "z": [1]}, {"z": 1}]),
    (obj([], {"additionalProperties": B}, a=I), [{"q": True}, {"a": 1, "q": False}, {"q": 1}]),
    ({"type": "object", "additionalProperties": I}, [{}, {"x": 1, "y": 2}, {"x": "1"}]),
    ({"type": "object", "additionalProperties": False}, [{}, {"a": 1}]),
    (obj(["x"], {"additionalProperties": False}, x=arr(arr(I))), [{"x": []}, {"x": [[1], []]}, {"x": [1]}]),
    ({"type": "object", "patternProperties": {"^n_": I}, "additionalProperties": False}, [{"n_a": 1}, {"n_a": "1"}, {"m": 1}]),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": True}, [{"abc": 1}, {"abcd": 1}, {"A": 1}]),
    ({"type": "object", "additionalProperties": I, "minProperties": 1, "maxProperties": 2}, [{}, {"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}]),
    (arr(I), [[], [1], [1, 2, 3], ["1"]]), (arr(I, minItems=2), [[1], [1, 2], [1, 2, 3]]), (arr(I, maxItems=2), [[], [1, 2], [1, 2, 3]]),
    (arr(S, minItems=1, maxItems=3), [[], ["a"], ["a", "b", "c"], ["a", "b", "c", "d"]]), (arr(I, minItems=3, maxItems=3), [[1, 2], [1, 2, 3], [1, 2, 3, 4]]),
    (arr(prefixItems=[I, S], items=False, minItems=2), [[1, "a"], [1], ["a", 1], [1, "a", 2]]),
    (arr(prefixItems=[I], items=B, minItems=1), [[1], [1, True, False], [True]]), (arr(obj(k=S)), [[{"k": "v"}], [{}], []]),
    ({"type": "string", "minLength": 2}, ["a", "ab", "中文", "😀"]), ({"type": "string", "maxLength": 3}, ["", "abc", "abcd", "中文字", "\n\n\n", "\n\n\n\n"]),
    ({"type": "string", "minLength": 1, "maxLength": 2}, ["", "a", "ab", "abc"]), ({"type": "string", "pattern": "^[A-Z][a-z]+$"}, ["Ab", "ab", "A", "AbC"]),
    ({"type": "string", "pattern": "^\\d{3}-\\d{4}$"}, ["555-1234", "5551234", "555-12345"]), ({"type": "string", "pattern": "^(a|bc)*$"}, ["", "abca", "b"]),
    ({"type": "string", "pattern": "^[^\"\\\\]{2,}$"}, ["ab", "a", "中文"]), ({"type": "string", "pattern": "^\\w+@\\w+\\.com$"}, ["a@b.com", "a@b.org", "@b.com"]),
    ({"type": "integer", "minimum": 0}, [0, 5, 100, -1]), ({"type": "integer", "maximum": 10}, [10, 11, -100, 9]),
    ({"type": "integer", "minimum": 10, "maximum": 250}, [9, 10, 99, 100, 249, 250, 251, 1000]), ({"type": "integer", "minimum": -250, "maximum": -3}, [-251, -250, -99, -3, -2, 0]),
    ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 100}, [0, 1, 99, 100]), ({"type": "integer", "minimum": -5, "maximum": 5}, [-6, -5, 0, 5, 6]),
    ({"type": "number", "minimum": 0, "maximum": 1}, [0, 0.5, 1, 1.5, -0.5, 1.0, 0.999]), ({"type": "number", "exclusiveMinimum": 0}, [0, 0.001, 5, -1]),
    ({"type": "number", "minimum": -1.5, "maximum": 2.25}, [-1.5, -1.51, 2.25, 2.26, 0, 2.2]),
    ({"anyOf": [S, N]}, ["x", None, 1]), ({"anyOf": [I, S, arr(I)]}, [1, "a", [1], [[1]], True]), ({"anyOf": [obj(a=I), obj(b=S)]}, [{"a": 1}, {"b": "x"}, {"a": "x"}, {}]),
    ({"oneOf": [obj(kind={"const": "cat"}, lives=I), obj(kind={"const": "dog"}, good=B)]}, [{"kind": "cat", "lives": 9}, {"kind": "dog", "good": True}, {"kind": "cat", "good": True}]),
    ({"oneOf": [S, I]}, ["x", 1, None]), ({"allOf": [obj(a=I)]}, [{"a": 1}, {}]),
    ({"$defs": {"p": obj(x=I, y=I)}, "type": "object", "properties": {"from": {"$ref": "#/$defs/p"}, "to": {"$ref": "#/$defs/p"}}, "required": ["from", "to"]},
     [{"from": {"x": 1, "y": 2}, "to": {"x": 3, "y": 4}}, {"from": {"x": 1}, "to": {"x": 3, "y": 4}}]),
    ({"$defs": {"n": {"type": "object", "properties": {"v": I, "next": {"anyOf": [{"$ref": "#/$defs/n"}, N]}}, "required": ["v", "next"]}}, "$ref": "#/$defs/n"},
     [{"v": 1, "next": None}, {"v": 1, "next": {"v": 2, "next": None}}, {"v": 1}]),
    ({"type": "object", "properties": {"name": S, "children": arr({"$ref": "#"})}, "required": ["name"]}, [{"name": "a"}, {"name": "a", "children": [{"name": "b"}]}, {"name": "a", "children": [{}]}]),
    ({"type": "string", "format": "date"}, ["2024-02-29", "2023-02-29", "2024-13-01", "24-01-01"]), ({"type": "string", "format": "time"}, ["12:30:00Z", "12:30", "25:00:00Z"]),
    ({"type": "string", "format": "date-time"}, ["2024-01-31T12:30:00Z", "2024-01-31"]), ({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000", "123"]),
    ({"type": "string", "format": "ipv4"}, ["10.0.0.1", "256.0.0.1", "1.2.3"]), ({"type": "string", "format": "ipv6"}, ["::1", "1:2:3:4:5:6:7:8", "fe80::1", "1:2", ":::"]),
    ({"type": "string", "format": "email"}, ["a.b@c.org", "a@", "@b"]), ({"type": "string", "format": "hostname"}, ["a.example", "-a", "a..b"]),
    ({"type": "string", "format": "uri"}, ["https://a.b/c?d#e", "a b"]), ({"type": "string", "format": "duration"}, ["P1DT2H", "PT", "1D"]), ({"type": "string", "format": "json-pointer"}, ["/a/b", "a"]),
    (obj(id={"type": "string", "format": "uuid"}, at={"type": "string", "format": "date-time"}, tags=arr(S, maxItems=2)), [{"id": "123e4567-e89b-12d3-a456-426614174000", "at": "2024-01-31T12:30:00Z", "tags": ["x"]}]),
    (obj(a=obj(b=obj(c=arr(obj(d={"enum": ["x", "y"]}))))), [{"a": {"b": {"c": [{"d": "x"}, {"d": "y"}]}}}, {"a": {"b": {"c": [{"d": "z"}]}}}]),
    (obj(**{"key with \"quote\"": I, "é": S}), [{"key with \"quote\"": 1, "é": "x"}, {"é": "x"}]), (True, [1, "a", {"x": [None]}]), ({}, [None, [1]]),
]
REGEXES = [
    ("abc", ["abc", "ab", "abcd"]), ("a*b+c?", ["b", "aabbc", "c", "abcc"]), ("(yes|no|maybe)", ["yes", "no", "may", "maybe"]), ("[a-z]{2,4}", ["a", "ab", "abcd", "abcde"]),
    ("\\d{3}-\\d{4}", ["123-4567", "123-456"]), ("[^abc]+", ["xyz", "xay", "中文", "\n"]), ("(ab|a)(c|bcd)", ["ac", "abc", "abcd", "abbcd"]), ("\\w+\\s\\w+", ["a b", "a", "a\tb"]),
    ("[\\u4e00-\\u9fff]+", ["中文", "abc"]), (".{3}", ["abc", "中文字", "ab", "a\nb"]), ("(a(b(c)?)?)?", ["", "a", "ab", "abc", "ac"]), ("-?(0|[1-9][0-9]*)(\\.[0-9]+)?", ["0", "-1.5", "01", "1."]),
    ("(a|b|c|d){1,3}x", ["ax", "abcx", "abcdx", "x"]), ("\\{\"a\": \\d+\\}", ["{\"a\": 1}", "{}"]), ("[\\w.+-]+@[\\w-]+\\.[a-z]{2,}", ["a.b@c.de", "a@b"]),
]
CHOICES = [["yes", "no"], ["a", "ab", "abc"], ["中文", "中国", "x"], ["positive", "negative", "neutral"]]


class Driver:
    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def as_text(value, schema):
    """Values of these lists are values where that reads well; texts that are no JSON stand as they are."""
    if isinstance(value, str) and not is_value(value, schema):
        return value
    return json.dumps(value, ensure_ascii=False)


def is_value(text, schema):
    holds_strings = schema is True or schema == {} or "string" in json.dumps(schema)[:40] or "anyOf" in schema or "oneOf" in schema or "enum" in schema or "const" in schema
    return holds_strings and not text.startswith('"')


def variants(texts, r):
    """Texts near to those given."""
    out = []
    for text in texts:
        for _ in range(3):
            at = r.randrange(len(text) + 1)
            kind = r.randrange(4)
            if kind == 0:
                out.append(text[:at] + text[at + 1:])
            elif kind == 1:
                out.append(text[:at] + r.choice('0195"{}[],:-.eax') + text[at:])
            elif kind == 2:
                out.append(text[:at])
            else:
                out.append(text[:at] + r.choice('0195"{}[],ax') + text[at + 1:])
    return out


def valid(schema, text):
    try:
        jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER).validate(json.loads(text))
        return True
    except (ValueError, jsonschema.ValidationError):
        return False


def clean(text):
    return "\ufffd" not in text and text.encode("utf-8", "ignore").decode() == text


def why_stricter(schema, text):
    """What is left out on purpose though jsonschema takes it; docs/structured-output.md has the list."""
    value = json.loads(text)
    if re.search(r'\s\s|[^:,{}\[\]]\s*[\n\t]|^\s|\s$|\{\s+\}|\[\s+\]|\s[:,]|[:,]\s\s', re.sub(r'"(\\.|[^"\\])*"', '""', text)):
        return "white space"
    numbers = re.findall(r"-?[0-9][0-9.eE+-]*", re.sub(r'"(\\.|[^"\\])*"', '""', text))
    if any(n == "-0" or re.search(r"[0-9]{21}|[eE]", n) or n.startswith("-0.0") or (re.search(r"\.0*$", n)) for n in numbers):
        return "spelling of numbers"
    if "\\" in text and json.dumps(value, ensure_ascii=False) != text:
        return "escapes"
    if re.search(r"[0-9]{10}", text) and schema.get("format") in ("duration", "time"):
        return "long numbers in times"
    return None


def compare_texts(driver, r, vectors):
    counts = {"texts": 0, "both take": 0, "both refuse": 0}
    problems, reasons, listed = 0, {}, []
    for schema, tries in SCHEMAS:
        text = json.dumps(schema)
        grammar = xgrammar.Grammar.from_json_schema(text, any_whitespace=True)
        walks = driver.ask(kind="schema", text=text, walks=40, limit=25, seed=r.randrange(1 << 30))
        if "error" in walks:
            print("PROBLEM: refused", text, walks["error"])
            problems += 1
            continue
        replies = [reply for reply, ended in walks["walks"] if ended and clean(reply)]
        for reply in replies:
            if not valid(schema, reply):
                print("PROBLEM: a reply does not validate:", text, repr(reply))
                problems += 1
        texts = [as_text(value, schema) for value in tries] + replies[:6]
        texts += [t for t in variants(texts, r) if clean(t)]
        texts = list(dict.fromkeys(texts))
        ours = driver.ask(kind="schema", text=text, accept=texts)["accept"]
        entry = {"kind": "schema", "text": text, "take": [], "refuse": []}
        for one, takes in zip(texts, ours):
            theirs, holds = _is_grammar_accept_string(grammar, one), valid(schema, one)
            counts["texts"] += 1
            if takes == theirs:
                counts["both take" if takes else "both refuse"] += 1
            if takes and not holds:
                print("PROBLEM: taken, but jsonschema does not:", text, repr(one))
                problems += 1
            if takes != theirs:
                if takes:
                    reason = "only we take it; jsonschema does too"
                elif not holds:
                    reason = "only xgrammar takes it; jsonschema does not"
                else:
                    why = why_stricter(schema, one)
                    reason = "only xgrammar takes it: " + str(why)
                    if why is None:
                        print("PROBLEM: refused, though jsonschema and xgrammar take it:", text, repr(one))
                        problems += 1
                reasons[reason] = reasons.get(reason, 0) + 1
                listed.append((reason, text, one))
            if len(one) < 120:
                entry["take" if takes else "refuse"].append(one)
        entry["take"], entry["refuse"] = entry["take"][:12], entry["refuse"][:16]
        vectors.append(entry)
    for pattern, tries in REGEXES:
        grammar = xgrammar.Grammar.from_regex(pattern)
        walks = driver.ask(kind="regex", text=pattern, walks=20, limit=15, seed=1)["walks"]
        texts = list(tries) + [w for w, ended in walks if ended and clean(w)][:8]
        texts = list(dict.fromkeys(texts + [t for t in variants(texts, r) if clean(t)]))
        ours = driver.ask(kind="regex", text=pattern, accept=texts)["accept"]
        for one, takes in zip(texts, ours):
            counts["texts"] += 1
            theirs = _is_grammar_accept_string(grammar, one)
            python = re.fullmatch(pattern, one, re.ASCII) is not None
            if takes == theirs:
                counts["both take" if takes else "both refuse"] += 1
            else:
                reason = "regex: only %s; Python %s" % ("we take it" if takes else "xgrammar takes it", "does too" if python else "does not")
                reasons[reason] = reasons.get(reason, 0) + 1
                listed.append((reason, pattern, one))
            if takes != python:
                listed.append(("regex: Python differs", pattern, one))
        vectors.append({"kind": "regex", "text": pattern, "take": [t for t, ok in zip(texts, ours) if ok][:12], "refuse": [t for t, ok in zip(texts, ours) if not ok][:12]})
    print(len(SCHEMAS), "schemas,", len(REGEXES), "regexes:", counts)
    for reason, count in sorted(reasons.items()):
        print("  %5d  %s" % (count, reason))
    return problems, listed


# Where the two differ on purpose. Here '.' takes no line break; a constant object has one spelling, with ", " and ": ";
# strings of limited length take escapes (there none, but raw control characters); keys that are not named, and strings
# with a pattern or format, have one spelling ("/" and not "\\/"); the local part of an email is not quoted; labels of hosts
# have at most 63 characters; octets begin with no 0.
OTHER_MASKS = (".{3}", '{"const": {"a"', "Length", '"additionalProperties": {"type": "boolean"}', '"additionalProperties": true', "propertyNames",
               '"email"', '"hostname"', '"json-pointer"', '"ipv6"')


def has_other_masks(text):
    return text == OTHER_MASKS[0] or any(word in text for word in OTHER_MASKS[1:])


def bits(bitmask, size):
    words = bitmask.tolist()[0]
    return [i for i in range(size) if words[i // 32] >> (i % 32) & 1]


def byte_of_character():
    plain = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


BYTES = byte_of_character()


def is_text(pieces):
    """UTF-8 so far: xgrammar lets bytes through that can begin no character (F0 80, ED A0)."""
    data = bytes(BYTES[c] for c in pieces)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
        return re.search(rb"\xed[\xa0-\xbf]", data) is None  # which Python holds back rather than refuses
    except UnicodeDecodeError:
        return False


def really_fits(compiled, ids, token):
    """xgrammar 0.2.9 sets some bits of tokens that it does not accept then."""
    matcher = xgrammar.GrammarMatcher(compiled)
    return all(matcher.accept_token(i) for i in ids) and matcher.accept_token(token)


def compare_masks(driver_path, tokenizer_path, r):
    """The tokens that may come next, on replies of ours: equal for regexes and choices, and for schemas at least what
    xgrammar allows with fixed separators."""
    described = json.loads(pathlib.Path(tokenizer_path).read_text())
    size = 1 + max(list(described["model"]["vocab"].values()) + [t["id"] for t in described["added_tokens"]])
    vocabulary = [""] * size
    for piece, index in described["model"]["vocab"].items():
        vocabulary[index] = piece
    added = {t["id"] for t in described["added_tokens"]}
    end = next(t["id"] for t in described["added_tokens"] if t["content"] == "<|endoftext|>")
    user = next(t["id"] for t in described["added_tokens"] if t["content"] == "<|user|>")
    info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.BYTE_LEVEL, vocab_size=size, stop_token_ids=[end, user])
    compiler = xgrammar.GrammarCompiler(info)
    driver = Driver(driver_path, tokenizer_path)
    problems = masks = 0
    cases = [("regex", p, compiler.compile_regex(p), {}) for p, _ in REGEXES]
    cases += [("choice", "", compiler.compile_regex("(" + "|".join(map(re.escape, c)) + ")"), {"strings": c}) for c in CHOICES]
    cases += [("schema", json.dumps(s), compiler.compile_json_schema(json.dumps(s), any_whitespace=False), {}) for s, _ in SCHEMAS]
    for kind, text, compiled, more in cases:
        for _ in range(0 if has_other_masks(text) else 3):
            matcher = xgrammar.GrammarMatcher(compiled)
            ids = []
            for _ in range(30):
                bitmask = xgrammar.allocate_token_bitmask(1, size)
                matcher.fill_next_token_bitmask(bitmask)
                theirs = [i for i in bits(bitmask, size) if i not in added or i in (end, user)]
                ours = driver.ask(kind=kind, text=text, masks=[ids], **more)["masks"][0]
                masks += 1
                extra, missing = set(ours) - set(theirs), set(theirs) - set(ours)
                if kind == "schema":  # numbers end after 20 digits here
                    missing = {i for i in missing if not vocabulary[i].isdigit()}
                missing = {i for i in missing if is_text("".join(vocabulary[j] for j in ids + [i]))}
                missing = {i for i in missing if really_fits(compiled, ids, i)}
                if missing or (extra and kind != "schema"):
                    problems += 1
                    if problems < 20:
                        shown = lambda s: [vocabulary[i] or i for i in sorted(s)[:8]]
                        print("PROBLEM: masks differ:", kind, text[:100], more, "after", [vocabulary[i] for i in ids][-8:], "only ours", len(extra), shown(extra), "only theirs", len(missing), shown(missing))
                    break
                choices = [i for i in theirs if i in ours and i not in (end, user)]
                if not choices:
                    break
                ids.append(r.choice(choices))
                if not matcher.accept_token(ids[-1]):
                    break
    print(masks, "masks compared over", size, "ids,", len(cases), "grammars")
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["check", "write"])
    parser.add_argument("--driver", required=True)
    parser.add_argument("--tokenizer", default=str(ROOT / "tests/fixtures/text/tokenizer.json"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="every text on which the two differ")
    arguments = parser.parse_args()
    r = random.Random(arguments.seed)
    vectors = []
    problems, listed = compare_texts(Driver(arguments.driver), r, vectors)
    if arguments.list:
        for reason, text, one in listed:
            print("%s\n    %s\n    %r" % (reason, text[:200], one))
    problems += compare_masks(arguments.driver, arguments.tokenizer, r)
    if arguments.what == "write":
        lines = ",\n".join(json.dumps(v, ensure_ascii=False) for v in vectors)
        (ROOT / "tests/fixtures/text/grammar_vectors.json").write_text("[\n" + lines + "\n]\n")
    print("problems:", problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
