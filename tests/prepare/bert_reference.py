"""Files of `trireme data bert`, compared value by value with those that the rules of bert_rules.py give."""
import argparse
import hashlib
import json
import random
import sys
import time
import unicodedata
from pathlib import Path

import h5py
import numpy as np

from bert_rules import CJK, dropped, blank, punctuation, fold, Tokenizer, make_instances

FIXED = {"input_ids": "i2", "input_mask": "i1", "segment_ids": "i1", "masked_lm_positions": "i2", "masked_lm_ids": "i2",
         "next_sentence_labels": "i1"}


def fixed_arrays(instances, options):
    width = {name: options.seq_length for name in FIXED}
    width["masked_lm_positions"] = width["masked_lm_ids"] = max(76, options.max_predictions)
    arrays = {name: np.zeros((len(instances), width[name]), dtype) for name, dtype in FIXED.items()}
    arrays["next_sentence_labels"] = np.array([x["next_sentence_labels"] for x in instances], "i1")
    for i, instance in enumerate(instances):
        arrays["input_mask"][i, :len(instance["input_ids"])] = 1
        for name in ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids"):
            arrays[name][i, :len(instance[name])] = instance[name]
    return arrays


def read_fixed(paths):
    """Instances of fixed-length files, in order."""
    instances = []
    for path in paths:
        with h5py.File(path) as file:
            data = {name: file[name][:] for name in FIXED}
        for i in range(len(data["input_ids"])):
            length, masks = int(data["input_mask"][i].sum()), int((data["masked_lm_positions"][i] != 0).sum())
            size = {"input_ids": length, "segment_ids": length, "masked_lm_positions": masks, "masked_lm_ids": masks}
            instances.append({name: data[name][i, :n] for name, n in size.items()} | {"next_sentence_labels": data["next_sentence_labels"][i]})
    return instances


# ---- comparisons: silent when equal

def same(name, theirs, ours):
    assert theirs.dtype == ours.dtype and theirs.shape == ours.shape, f"{name}: {theirs.dtype}{theirs.shape} and {ours.dtype}{ours.shape}"
    different = np.argwhere(theirs != ours)
    assert len(different) == 0, f"{name}: first difference at {different[0]}: {theirs[tuple(different[0])]} and {ours[tuple(different[0])]}"


def check_plain_storage(dataset):
    assert dataset.chunks is None and dataset.compression is None, f"{dataset.name}: not contiguous"


def check_rows(path, rows, columns):
    """A file of variable-length columns equals `rows`; columns: name -> dtype of the elements, or None for a plain int8 column."""
    with h5py.File(path) as file:
        assert sorted(file) == sorted(columns), f"{path}: datasets {sorted(file)}"
        for name, dtype in columns.items():
            check_plain_storage(file[name])
            assert file[name].shape == (len(rows),), f"{path}: {name}{file[name].shape}, expected {len(rows)} rows"
            if dtype is None:
                same(name, np.array([row[name] for row in rows], "i1"), file[name][:])
                continue
            assert h5py.check_vlen_dtype(file[name].dtype) == np.dtype(dtype), f"{path}: {name} is {file[name].dtype}"
            for i, (row, stored) in enumerate(zip(rows, file[name][:], strict=True)):
                same(f"{path}: {name}[{i}]", np.asarray(row[name], dtype), stored)


VARLENGTH = {"input_ids": "i2", "segment_ids": "i1", "masked_lm_positions": "i2", "masked_lm_ids": "i2", "next_sentence_labels": None}
PACKED = {"input_ids": "i2", "segment_ids": "i1", "masked_lm_positions": "i2", "masked_lm_ids": "i2", "packed_input_len": "i2",
          "packed_masked_lm_len": "i2", "next_sentence_labels": "i1"}


def compare_instances(args):
    tokenizer = Tokenizer(args.vocab)
    start = time.process_time()
    instances = make_instances(args.text, tokenizer, args)
    seconds = time.process_time() - start
    with h5py.File(args.fixed) as file:
        assert sorted(file) == sorted(FIXED)
        for name, array in fixed_arrays(instances, args).items():
            check_plain_storage(file[name])
            same(name, array, file[name][:])
    print(len(instances), seconds)


def compare_shards(args):
    """Fixed-length parts divided into varlength shards, shuffled or not."""
    instances = read_fixed(args.fixed)
    pairs = list(range(len(instances)))
    if args.shuffle_seed is not None:
        random.Random(args.shuffle_seed).shuffle(pairs)
    nominal = -(-len(pairs) // args.shards)
    smaller = args.shards * nominal - len(pairs)
    extension = "hdf5" if args.shuffle_seed is None else "hdf"
    at = 0
    for shard in range(args.shards):
        size = nominal - (shard < smaller)
        path = f"{args.directory}/part_{shard:05}_of_{args.shards:05}.{extension}"
        check_rows(path, [instances[i] for i in pairs[at:at + size]], VARLENGTH)
        at += size
    assert at == len(pairs)
    print(len(pairs))


def compare_eval(args):
    tokenizer = Tokenizer(args.vocab)
    instances = make_instances(args.text, tokenizer, args)
    picked = [instances[int(i * (len(instances) / args.count))] for i in range(args.count)]
    check_rows(args.file, picked, VARLENGTH)
    print(hashlib.md5(str([hashlib.md5(str(list(x["input_ids"])).encode()).hexdigest() for x in picked]).encode()).hexdigest())


def compare_packed(args):
    """Assigns sequences to rows, with the strategies that the C++ program chose; and checks that they cover all sequences."""
    plan = json.load(open(f"{args.directory}/packing.json"))
    by_length = {length: [] for length in range(1, args.seq_length + 1)}
    total = 0
    for instance in read_fixed(args.fixed):
        by_length[len(instance["input_ids"])].append(instance)
        total += 1
    counts = [len(by_length[length]) for length in by_length]
    assert plan["counts"] == counts
    places = np.zeros(args.seq_length + 1, int)
    for strategy in plan["strategies"]:
        assert sum(strategy["lengths"]) == args.seq_length and 1 <= len(strategy["lengths"]) <= 3 and strategy["lengths"] == sorted(strategy["lengths"])
        for length in strategy["lengths"]:
            places[length] += strategy["rows"]
    assert (places[1:] - plan["padding"] == counts).all(), "the slots without the empty ones do not equal the sequences"
    rng = random.Random(plan["seed"])
    lists = {}
    for length, sequences in by_length.items():
        lists[length] = sequences + [None] * plan["padding"][length - 1]
        rng.shuffle(lists[length])
    order = [strategy["lengths"] for strategy in plan["strategies"] for _ in range(strategy["rows"])]
    rng.shuffle(order)
    rows = []
    for lengths in order:
        members = [lists[length].pop(0) for length in lengths]
        members = [member for member in members if member is not None]
        if members:
            rows.append(members)
    assert not any(lists.values())
    at = 0
    for shard in range(args.shards):
        size = len(rows) // args.shards + (shard < len(rows) % args.shards)
        expected = []
        for members in rows[at:at + size]:
            starts = np.cumsum([0] + [len(m["input_ids"]) for m in members])
            row = {name: np.concatenate([m[name] for m in members]) for name in ("input_ids", "segment_ids", "masked_lm_ids")}
            row["masked_lm_positions"] = np.concatenate([m["masked_lm_positions"] + s for m, s in zip(members, starts)])
            row["packed_input_len"] = [len(m["input_ids"]) for m in members]
            row["packed_masked_lm_len"] = [len(m["masked_lm_ids"]) for m in members]
            row["next_sentence_labels"] = [m["next_sentence_labels"] for m in members]
            expected.append(row)
        check_rows(f"{args.directory}/part_{shard:05}", expected, PACKED)
        at += size
    print(total, len(rows))


def compare_everything(args):
    """All outputs of the tests for the two parts of a directory, in one process."""
    def run(function, **settings):
        function(argparse.Namespace(**{**vars(args), **settings}))

    fixed = ["fixed/part-00000.hdf5", "fixed/part-00001.hdf5"]
    for part, path in zip(("part-00000", "part-00001"), fixed):
        run(compare_instances, text=part, fixed=path)
    run(compare_shards, directory="chopped", shards=7, fixed=fixed)
    run(compare_shards, directory="shuffled", shards=7, shuffle_seed=24, fixed=fixed)
    run(compare_packed, directory="packed", shards=5, fixed=fixed)
    run(compare_eval, text="part-00001", file="eval/part_eval")


# ---- packing with SciPy's solver

def all_strategies(length, depth=3, least=1):
    if depth == 1:
        return [[length]] if length >= least else []
    result = []
    for first in range(least, length + 1):
        if first == length:
            result.append([first])
        else:
            result += [[first, *rest] for rest in all_strategies(length - first, depth - 1, first)]
    return result


def scipy_packing(args):
    """Rows of the published recipe with scipy.optimize.nnls, and the residual of its first problem."""
    from scipy.optimize import nnls

    counts = np.array(json.load(open(args.counts)))
    length = len(counts)
    strategies = all_strategies(length)
    matrix = np.zeros((length, len(strategies)))
    for i, strategy in enumerate(strategies):
        for part in strategy:
            matrix[part - 1, i] += 1
    weights = np.ones(length)
    weights[:8] = 8 / (2 * length)
    weights = np.sqrt(weights)
    start = time.process_time()
    mixture, left, first_norm = np.zeros(len(strategies)), counts.astype(float), None
    for _ in range(20):
        solution, norm = nnls(weights[:, None] * matrix, weights * left, maxiter=10 * len(strategies))
        first_norm = norm if first_norm is None else first_norm
        rows = np.where(solution < 2, np.rint(solution), np.floor(solution))
        if rows.max() == 0:
            rows[np.argsort(-(matrix.T @ (left * np.arange(1, length + 1))))[:int(left.sum() // 2) + 1]] += 1
        mixture += rows
        left = np.maximum(left - matrix @ rows, 0)
        if left.sum() < 100:
            break
    for i in np.flatnonzero(left):
        mixture[strategies.index(sorted([i + 1, length - i - 1]) if i + 1 < length else [length])] += left[i]
    assert (matrix @ mixture >= counts).all()
    print(len(strategies), first_norm, int(mixture.sum()), time.process_time() - start)


# ---- inputs

def unicode_facts(args):
    """Lines for code points with any property: code, drop, space, python space, punctuation, cjk, folded."""
    print(unicodedata.unidata_version)
    ranges = [(0, 0x3500), (0x4D00, 0x4F00), (0x9F00, 0xAC80), (0xD700, 0xD800), (0xE000, 0xE010), (0xF8F0, 0x12500), (0x16000, 0x17010),
              (0x1B000, 0x20020), (0x2A6D0, 0x2A710), (0x2B730, 0x2B830), (0x2CEA0, 0x2CEC0), (0x2F7F0, 0x2FA30), (0xE0000, 0xE0200)]
    print(*(end for pair in ranges for end in pair))
    for code in (code for pair in ranges for code in range(*pair)):
        c = chr(code)
        cjk = any(a <= code <= b for a, b in CJK)
        facts = (dropped(c), blank(c), c.isspace(), punctuation(c), cjk)
        if any(facts) or fold(c) != c:
            print(code, *map(int, facts), *map(ord, fold(c)))
    print("words")
    rng = random.Random(1)
    marks = [c for c in map(chr, range(0x20000)) if unicodedata.combining(c)]
    odd = [c for c in marks if unicodedata.category(c) != "Mn"]
    cased = list("aBΣσςÄİßǅⅣʰ'.’·\u00ad1ΐ가각\u1d15e\u0cc0")
    for _ in range(2000):
        word = "".join(rng.choice((rng.choice(marks), rng.choice(odd), rng.choice(cased), "Σ")) for _ in range(rng.randint(1, 12)))
        print(len(word), *map(ord, word), *map(ord, fold(word)))


AWKWARD = [
    "Ünïcödé ÀCCENTS, e\u0301 and E\u0308\u0323; \u1e9e\u0130STANBUL ΟΔΥΣΣΕΥΣ ΣΑΣ Σ.",
    "漢字と kana かな 한국어 \U00020000x㐀豈 mixed中文English",
    "soft\u00adhyphen zero\u200bwidth\u200djoin\ufeffer nul\x00 bell\x07 tab\there \x1c\x1d \x85 nbsp\u00a0thin\u2009ls\u2028ps\u2029end",
    "x" * 199 + " " + "y" * 200 + " " + "z" * 201 + " " + "é" * 250,
    "", "   \t ", "One sentence alone.", "", "\u200b", "", "[CLS] [SEP] [MASK] ##ing $100.00 'tis—“quoted”… ¿qué? §5 ©2020 @#%^&*()_+=~`|\\",
    "emoji 😀👩\u200d👩\u200d👧 flags 🇩🇪 \U0001f1e6 math 𝔘𝔫 ½ ² ﬁ ﬃ Ⅳ", "a.b,c!d?e", "\u0301leading mark", "", "", "\r", "carriage\rreturn", "last line without end",
]


def make_sample(args):
    """Text that every Debian machine has, a vocabulary for it, and hand-made special cases."""
    words = {}
    parts = []
    for path in sorted(Path("/usr/share/common-licenses").iterdir()):
        if path.is_file() and not path.is_symlink():
            text = path.read_text(encoding="utf-8", errors="ignore")
            parts.append("\n\n".join("\n".join(p.split("\n")) for p in text.split("\n\n")))
            for word in text.lower().split():
                words[word.strip(".,;:()\"'")] = words.get(word.strip(".,;:()\"'"), 0) + 1
    size = 80_000
    licenses = "\n\n".join(parts)[:size]
    half = licenses.rfind("\n", 0, len(licenses) // 2) + 1
    directory = Path(args.directory)
    (directory / "part-00000").write_text(licenses[:half] + "\n\n" + "\n".join(AWKWARD), encoding="utf-8", newline="")
    (directory / "part-00001").write_text(licenses[half:], encoding="utf-8")
    letters = [chr(c) for c in range(33, 127)] + list("éöüßςσ漢字中가ü–—“”’…")
    frequent = sorted((w for w in words if w.isalpha() and words[w] > 3), key=lambda w: (-words[w], w))[:1500]
    endings = ["##ing", "##ed", "##s", "##ly", "##tion"]
    vocab = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters), *frequent, *endings, "[CLS]", ""]
    (directory / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")


def make_wikitext(args):
    """wikitext-2 with one sentence a line and a blank line between articles, cut into two parts of at most --bytes."""
    import re

    lines = []
    for name in ("valid", "test"):
        for line in open(f"{args.source}/{name}.txt", encoding="utf-8"):
            line = line.strip()
            if re.match(r"^= [^=].* =$", line):
                lines.append("")
            lines += [s for s in re.split(r"(?<=[.?!]) ", line) if s]
    text = "\n".join(lines)
    half = text.find("\n", min(len(text) // 2, args.bytes)) + 1
    Path(args.directory, "part-00000").write_text(text[:half], encoding="utf-8")
    Path(args.directory, "part-00001").write_text(text[half:2 * half], encoding="utf-8")


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)

    def command(function, *arguments):
        sub = commands.add_parser(function.__name__)
        sub.set_defaults(function=function)
        for argument in arguments:
            sub.add_argument(argument)
        sub.add_argument("--fixed", nargs="*" if function is not compare_instances else None)
        for name, kind, value in (("seq-length", int, 512), ("max-predictions", int, 76), ("masked-lm-prob", float, 0.15),
                                  ("short-seq-prob", float, 0.1), ("dupe-factor", int, 10), ("seed", int, 12345),
                                  ("shards", int, 4), ("shuffle-seed", int, None), ("count", int, 100), ("bytes", int, 1 << 40)):
            sub.add_argument(f"--{name}", type=kind, default=value)

    command(compare_instances, "vocab", "text")
    command(compare_shards, "directory")
    command(compare_eval, "vocab", "text", "file")
    command(compare_packed, "directory")
    command(compare_everything, "vocab")
    command(scipy_packing, "counts")
    command(unicode_facts)
    command(make_sample, "directory")
    command(make_wikitext, "source", "directory")
    args = parser.parse_args()
    args.function(args)


if __name__ == "__main__":
    sys.exit(main())
