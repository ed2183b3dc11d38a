#!/usr/bin/env python3
"""Writes src/text/jinja/unicode_tables.cc: the Unicode facts that Python's str methods use, read off the running Python
by asking it about every code point. Run with Python 3.11 (Unicode 14.0), the version the committed vectors were made
with: python3 scripts/make_unicode_tables.py > src/text/jinja/unicode_tables.cc"""
import sys
import unicodedata

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def sets(predicate):
    """Runs {first, last, stride} that cover exactly the code points for which the predicate holds."""
    return runs([(c, 0) for c in CODE_POINTS if predicate(c)])


def runs(pairs):
    """Groups (code point, delta) pairs of equal delta and constant stride 1 or 2: [first, last, stride, delta]."""
    out = []
    for c, delta in pairs:
        if out and out[-1][3] == delta:
            first, last, stride, _ = out[-1]
            if first == last and c - last in (1, 2):
                out[-1] = [first, c, c - last, delta]
                continue
            if first != last and c - last == stride:
                out[-1][1] = c
                continue
        out.append([c, c, 1, delta])
    return out


def mapping(function):
    single, several = [], []
    for c in CODE_POINTS:
        to = function(chr(c))
        if to == chr(c):
            continue
        if len(to) == 1:
            single.append((c, ord(to) - c))
        else:
            several.append((c, [ord(x) for x in to]))
    return single, several


def emit(kind, name, rows):
    print(f"constexpr {kind} {name}Rows[] = {{")
    line = "   "
    for row in rows:
        cells = [str(x) if i > 1 and kind == "CaseRun" else hex(x) if x > 9 else str(x) for i, x in enumerate(row)]
        if kind == "CaseSpecial":
            cells = [cells[0], "{" + ", ".join(cells[1:]) + "}"]
        item = " {" + ", ".join(cells) + "},"
        if len(line) + len(item) > 118:
            print(line)
            line = "   "
        line += item
    print(line + f"\n}};\nconst std::span<const {kind}> {name}({name}Rows);\n")


def main():
    upper, upper_several = mapping(str.upper)
    lower, lower_several = mapping(str.lower)
    title, title_several = mapping(str.title)
    # Title case is stored as what differs from upper case.
    upper_of = dict(upper) | {c: None for c, _ in upper_several}
    title_only = [(c, d) for c, d in title if upper_of.get(c, 0) != d]
    title_only += [(c, 0) for c in upper_of if chr(c).title() == chr(c)]
    several = dict(upper_several)
    title_several = [(c, t) for c, t in title_several if several.get(c) != t]
    ignorable = lambda c: ("A" + chr(c) + "\u03a3").lower()[-1] == "\u03c2" and (chr(c) + "\u03a3").lower()[-1] == "\u03c3"
    print(f"""// Made by scripts/make_unicode_tables.py from Python's Unicode {unicodedata.unidata_version}; do not edit.
// clang-format off
#include "text/jinja/unicode_tables.h"

namespace verbatim::text::jinja {{
""")
    pad = lambda rows: [[c, *(t + [0, 0])[:3]] for c, t in rows]
    emit("CaseRun", "kUpper", runs(upper))
    emit("CaseRun", "kLower", runs(lower))
    emit("CaseRun", "kTitle", runs(sorted(title_only)))
    emit("CaseSpecial", "kUpperSpecial", pad(upper_several))
    emit("CaseSpecial", "kLowerSpecial", pad(lower_several))
    emit("CaseSpecial", "kTitleSpecial", pad(title_several))
    for name, predicate in [("kCaseIgnorable", ignorable),
                            ("kLowercase", lambda c: chr(c).islower()), ("kUppercase", lambda c: chr(c).isupper()),
                            ("kTitlecase", lambda c: unicodedata.category(chr(c)) == "Lt"),
                            ("kSpace", lambda c: chr(c).isspace()),
                            ("kNotPrintable", lambda c: not chr(c).isprintable())]:
        emit("CodePointRun", name, [row[:3] for row in sets(predicate)])
    print("}  // namespace verbatim::text::jinja")


if sys.version_info[:2] != (3, 11):
    sys.exit("Python 3.11 is needed: another version's Unicode tables differ")
main()
