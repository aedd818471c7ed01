#!/usr/bin/env python3
"""Writes data/prepare/bert_unicode_tables.inc: the parts of Python's Unicode tables that BERT's tokenizer uses.

The rules of BERT's tokenizer are stated in terms of Python: str.lower(), str.isspace(), unicodedata.category() and
normalize("NFD"). The tables are therefore taken from Python itself, so that the results equal those of a Python with the same
Unicode version. Run it with the Python version to match, and commit the output. Decompositions that data/tokenizer/unicode_tables.inc
(make_tokenizer_tables.py) has as well are not written again.
"""
import re
import sys
import unicodedata
from pathlib import Path

DROPPED, SPACE, PYTHON_SPACE, PUNCTUATION, NONSPACING, REORDERED, CASED, IGNORABLE, MAPPED = (1 << i for i in range(9))
SIGMA, FINAL_SIGMA = "\u03a3", "\u03c2"


def flags(code):
    c = chr(code)
    category = unicodedata.category(c)
    space = category == "Zs" or c in " \t\n\r"
    result = 0
    if code in (0, 0xFFFD) or (category in ("Cc", "Cf") and c not in "\t\n\r"):
        result |= DROPPED
    if space:
        result |= SPACE
    if c.isspace():
        result |= PYTHON_SPACE
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126 or category.startswith("P"):
        result |= PUNCTUATION
    if category == "Mn":
        result |= NONSPACING
    if unicodedata.combining(c):
        result |= REORDERED
    # unicodedata has neither Cased nor Case_Ignorable; str.lower()'s rule for a final sigma reveals them.
    alone = (c + SIGMA).lower()[-1] == FINAL_SIGMA
    after_letter = ("a" + c + SIGMA).lower()[-1] == FINAL_SIGMA
    if alone:
        result |= CASED
    elif after_letter:
        result |= IGNORABLE
    if mapping(code) != c:
        result |= MAPPED
    return result


def mapping(code):
    return chr(code) if 0xD800 <= code < 0xE000 else unicodedata.normalize("NFD", chr(code).lower())


def decompositions():
    """By code point, as the tokenizer's table has them; Hangul syllables decompose by arithmetic."""
    text = (Path(__file__).parent.parent / "data/tokenizer/unicode_tables.inc").read_text()
    numbers = list(map(int, re.search(r"kDecompositions\[\] = \{([^}]*)\}", text).group(1).strip().rstrip(",").split(",")))
    result = {code: mapping(code) for code in range(0xAC00, 0xAC00 + 11172)}
    while numbers:
        code, count = numbers[:2]
        result[code] = "".join(map(chr, numbers[2:2 + count]))
        del numbers[:2 + count]
    return result


def lines(numbers, separator=","):
    line = ""
    for number in numbers:
        text = f"{number}{separator}"
        if len(line) + len(text) > 138:
            yield line
            line = ""
        line += text
    yield line


def main():
    ranges, mappings = [], []
    start, current = 0, flags(0)
    for code in range(1, 0x110001):
        now = flags(code) if code < 0x110000 else None
        if now == current:
            continue
        if current:
            ranges += [start, code - start, current]
        start, current = code, now
    shared = decompositions()
    for code in range(0x110000):
        if mapping(code) != shared.get(code, chr(code)):
            mappings += [code, len(mapping(code)), *map(ord, mapping(code))]
    orders = []
    for code in range(0x110000):
        c = chr(code)
        if unicodedata.combining(c) and unicodedata.category(c) != "Mn":
            orders += [code, unicodedata.combining(c)]
    output = Path(__file__).parent.parent / "data/prepare/bert_unicode_tables.inc"
    with open(output, "w") as file:
        print("// Made by scripts/make_unicode_tables.py; do not edit.", file=file)
        print(f'constexpr char kTableVersion[] = "{unicodedata.unidata_version}";', file=file)
        print("// First code point, count, flags.", file=file)
        print("constexpr uint32_t kFlagRanges[] = {", *lines(ranges), "};", sep="\n", file=file)
        print("// Code point, count, NFD of its lower case, where that is not its own decomposition.", file=file)
        print("constexpr uint32_t kMappings[] = {", *lines(mappings), "};", sep="\n", file=file)
        print("// Code points that NFD reorders and that are not Mn, and their combining class.", file=file)
        print("constexpr uint32_t kCombiningClasses[] = {", *lines(orders), "};", sep="\n", file=file)
    print(f"{output}: Unicode {unicodedata.unidata_version}, {len(ranges) // 3} ranges", file=sys.stderr)


if __name__ == "__main__":
    main()
