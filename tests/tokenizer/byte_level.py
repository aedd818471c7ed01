"""What the tests and the benchmark of byte-level BPE share: texts, tokenizers of the three kinds trained on them, and our program."""
import os
import struct
import subprocess
import sysconfig
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def files_below(folder):
    """In the order of their names, folder by folder as they are asked for: both folders have tens of thousands of files."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names))


def ordinary_text(size):
    """Python sources and documentation of this machine, as texts of whole files."""
    texts, total = [], 0
    for folder in (sysconfig.get_path("stdlib"), "/usr/share/doc"):
        for path in files_below(folder):
            if total >= size:
                return texts
            if path.suffix in (".py", ".txt", ".md", ".rst") and path.is_file() and path.stat().st_size < 1 << 20:
                try:
                    text = path.read_text(encoding="utf-8")
                except (UnicodeDecodeError, OSError):
                    continue
                texts.append(text)
                total += len(text.encode())
    return texts


def hostile_texts(rng, count):
    """Characters of all planes, marks without bases, runs of white space, NULs, contractions, added tokens in odd places."""
    spaces = [chr(c) for c in range(0x110000) if chr(c).isspace()] + ["\r\n", "\n\n\n", "   ", "\t\t", "\u200b", "\u180e", "\ufeff", "\x00", "\x85"]
    bits = ["'s", "'S", "'re", "'LL", "'\u017f", "\u2019s", "'", "''", "it's", "I'VE", "12345", "1,000.5", "\u0661\u0662\u0663\u0664", "\u2167", "x\u0301",
            "\u0301", "e\u0301\u0323", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0f73\u0f71", "\U0001f468\u200d\U0001f469", "\U0001f1e9\U0001f1ea", "\u4e2d\u6587",
            "\u0e44\u0e17\u0e22", "<|endoftext|>", "<|endoftext|", "<|im_start|>", "<|im_end|><|im_end|>", " <pad> ", "<sep>", "a<sep>b", "word", "\u00c5ngstr\u00f6m",
            "A\u030angstro\u0308m", "_", "__init__", "\\", "...", "-----", "\u00a0", "=" * 70, "a" * 40, "\uffff", "\ufffd", "\U0010ffff", "\u212b", "\ufb01"]
    planes = [(0, 0x80), (0x80, 0x800), (0x300, 0x370), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000), (0x1F000, 0x20000), (0x20000, 0x110000)]
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(0, 24)):
            kind = rng.random()
            if kind < 0.35:
                parts.append(rng.choice(bits))
            elif kind < 0.6:
                parts.append("".join(rng.choices(spaces, k=rng.randint(1, 4))) if rng.random() < 0.5 else " " * rng.randint(1, 40))
            else:
                low, high = rng.choice(planes)
                parts.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 12))))
        yield "".join(parts)


def train(kind, texts, vocab_size):
    """A tokenizer of the kind of GPT-2, Llama 3 or Qwen2, or with another pattern (o200k) that has no hand-written splitter."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
    if kind != "gpt2":
        pattern = {"llama3": LLAMA3, "qwen2": QWEN2, "o200k": O200K}[kind]
        byte_level = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])
    tokenizer.pre_tokenizer = byte_level
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=2, show_progress=False, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", AddedToken("<pad>", lstrip=True, rstrip=True, special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<sep>", single_word=True, normalized=True), AddedToken("\u212bngstrom", normalized=True, single_word=False)])
    if kind == "llama3":
        begin = tokenizer.token_to_id("<|im_start|>")
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<|im_start|> $A", pair="<|im_start|> $A <|im_start|> $B", special_tokens=[("<|im_start|>", begin)])])
    return tokenizer


def packed(texts):
    encoded = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(data)) + data for data in encoded)


def ours(probe, model, texts):
    """(ids, text with specials, text without) of every text."""
    done = subprocess.run([probe, model], input=packed(texts), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    result, at = [], 0
    for _ in texts:
        (count,) = struct.unpack_from("<I", done.stdout, at)
        ids = list(struct.unpack_from(f"<{count}i", done.stdout, at + 4))
        at += 4 + 4 * count
        back = []
        for _ in range(2):
            (size,) = struct.unpack_from("<I", done.stdout, at)
            back.append(done.stdout[at + 4:at + 4 + size].decode())
            at += 4 + size
        result.append((ids, *back))
    assert at == len(done.stdout)
    return result


def differences(probe, model_path, tokenizer, texts):
    found = []
    theirs = tokenizer.encode_batch(texts, add_special_tokens=False)
    for text, a, b in zip(texts, ours(probe, model_path, texts), theirs):
        expected = (b.ids, tokenizer.decode(b.ids, skip_special_tokens=False), tokenizer.decode(b.ids))
        if a != expected:
            found.append((text, a, expected))
    return found


def every_character(sample=False):
    """Texts in which every character stands alone, between letters, digits and spaces, and before and behind marks. A sample has 512 of each 2,048
    characters up to the scripts of Asia, and of each 98,304 behind them."""
    for begin in range(0, 0x110000, 512):
        if sample and begin % (2048 if begin < 0x3400 else 98304) != 0:
            continue
        characters = [chr(c) for c in range(begin, begin + 512) if not 0xD800 <= c < 0xE000]
        if characters:
            yield "".join(f"a{c}b {c} 1{c}2{c}{c}\n{c}" for c in characters)
            yield "".join(f"{c}\u0301{c}\u0334\u0327{c} " for c in characters)
