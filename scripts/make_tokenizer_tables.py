#!/usr/bin/env python3
"""Writes data/tokenizer/unicode_tables.inc: the character classes and the canonical composition of Hugging Face `tokenizers`.

Its pre-splits use Oniguruma's \\p{L}, \\p{N} and \\s, its added tokens the \\w of Rust's crate regex, its NFC another crate: each with the
Unicode version of its own. The tables are taken from the behaviour of the package, so that token ids equal those of the version that
the script runs with (0.23.3). Run it with the version to match, and commit the output.
"""
import sys
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

LETTER, NUMBER, SPACE, WORD, COMPOSED = 1, 2, 3, 4, 8  # COMPOSED: NFC may change it, or what stands before it
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
ALL = "".join(map(chr, CODES))
HANGUL = range(0xAC00, 0xAC00 + 11172)
MARKS = "\u0334\u0327\u0301\u0345\u3099\u0f71\u0591\u0618"  # of different combining classes
nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str


def matching(pattern):
    """The code points that a pattern of one character matches."""
    left = pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(ALL)
    keep = bytearray(len(ALL))
    for _, (begin, end) in left:
        keep[begin:end] = b"\1" * (end - begin)
    return {CODES[i] for i in range(len(ALL)) if not keep[i]}


def word_characters():
    """The code points behind which a token with single_word is no word of its own."""
    tokenizer = Tokenizer(models.WordLevel({"Q": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.add_tokens([AddedToken("Q", single_word=True, normalized=False)])
    found = set()
    for begin in range(0, len(CODES), 64):
        codes = [code for code in CODES[begin:begin + 64] if chr(code) != "Q"]
        encoding = tokenizer.encode("".join(f"Q{chr(code)}\n" for code in codes))
        alone = {encoding.offsets[i][0] // 3 for i, token in enumerate(encoding.ids) if token == 0}
        found |= {code for i, code in enumerate(codes) if i not in alone}
    return found | {ord("Q")}


def combining_class(code):
    """Python's, unless the package's tables are older and do not know the character."""
    c = chr(code)
    own = unicodedata.combining(c)
    if own == 0:
        return 0
    text = "".join(f"{mark}{c}x{c}{mark}x" for mark in MARKS)
    return own if nfd(text) == unicodedata.normalize("NFD", text) else 0


def lines(numbers):
    line = ""
    for number in numbers:
        text = f"{number},"
        if len(line) + len(text) > 138:
            yield line
            line = ""
        line += text
    yield line


def main():
    flags = {code: 0 for code in CODES}
    for bit, codes in ((LETTER, matching(r"\p{L}")), (NUMBER, matching(r"\p{N}")), (SPACE, matching(r"\s")), (WORD, word_characters())):
        for code in codes:
            flags[code] |= bit
    classes = [(code, combining_class(code)) for code in CODES if combining_class(code)]
    decomposed = [code for code in CODES if code not in HANGUL and nfd(chr(code)) != chr(code)]
    composed = {nfd(chr(code)): chr(code) for code in decomposed if nfc(chr(code)) == chr(code)}
    for code in decomposed:
        if nfc(chr(code)) != chr(code):
            flags[code] |= COMPOSED
        else:
            # What data/tokenizer/characters.cpp takes the pairs of a composition from.
            parts = nfd(chr(code))
            first = composed.get(parts[:-1], parts[:-1])
            assert [ord(first), ord(parts[-1])] == [int(part, 16) for part in unicodedata.decomposition(chr(code)).split()], hex(code)
            assert nfc(first + parts[-1]) == chr(code), hex(code)
            flags[ord(parts[-1])] |= COMPOSED
    for code, _ in classes:
        flags[code] |= COMPOSED
    for code in [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]:  # Hangul vowels and final consonants
        flags[code] |= COMPOSED
    ranges, start = [], 0
    for code in range(1, 0x110001):
        if code == 0x110000 or flags.get(code, 0) != flags.get(start, 0):
            if flags.get(start, 0):
                ranges += [start, code - start, flags[start]]
            start = code
    output = Path(__file__).parent.parent / "data/tokenizer/unicode_tables.inc"
    with open(output, "w") as file:
        print(f"// Made by scripts/make_tokenizer_tables.py from tokenizers {tokenizers.__version__}; do not edit.", file=file)
        print("// First code point, count, flags: 1 letter, 2 number, 3 space; +4 \\w; +8 NFC may change it.", file=file)
        print("constexpr uint32_t kCharacterRanges[] = {", *lines(ranges), "};", sep="\n", file=file)
        print("// Code point, count, its canonical decomposition.", file=file)
        print("constexpr uint32_t kDecompositions[] = {",
              *lines(n for code in decomposed for n in (code, len(nfd(chr(code))), *map(ord, nfd(chr(code))))), "};", sep="\n", file=file)
        print("// Code point, combining class.", file=file)
        print("constexpr uint32_t kCombiningClasses[] = {", *lines(n for entry in classes for n in entry), "};", sep="\n", file=file)
    print(f"{output}: {len(ranges) // 3} ranges, {len(decomposed)} decompositions, {len(composed)} compositions", file=sys.stderr)


if __name__ == "__main__":
    main()
