#!/usr/bin/env python3
"""Megatron's data rules in NumPy, written from their description: what data/megatron is compared with.
make DIR    50 random configurations with their files, and the rows that they give
core        the rows of make's configurations for Megatron core against those that megatron-core's own code gives
check DIR   the index maps that C++ wrote into DIR/cache against those built here
read DIR    packed.bin/.idx, written by C++, against documents.npy; and the other way round: back.bin/.idx
mock        rows of NeMo's mock set"""
import json
import math
import struct
import sys
import tempfile

import numpy as np

TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def write_indexed(prefix, documents, code, modes=False):
    lengths = np.array([len(d) for d in documents], np.int32)
    size = np.dtype(TYPES[code]).itemsize
    offsets = np.concatenate([[0], np.cumsum(lengths.astype(np.int64) * size)])[:-1].astype(np.int64)
    with open(prefix + ".bin", "wb") as out:
        for document in documents:
            out.write(np.asarray(document, TYPES[code]).tobytes())
    with open(prefix + ".idx", "wb") as out:
        out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(documents), len(documents) + 1))
        out.write(lengths.tobytes() + offsets.tobytes() + np.arange(len(documents) + 1, dtype=np.int64).tobytes())
        if modes:
            out.write(np.zeros(len(documents), np.int8).tobytes())


def read_indexed(prefix):
    raw = open(prefix + ".idx", "rb").read()
    assert raw[:9] == b"MMIDIDX\0\0"
    version, code, count, bounds = struct.unpack("<QBQQ", raw[9:34])
    assert version == 1 and bounds == count + 1
    lengths = np.frombuffer(raw, np.int32, count, 34)
    offsets = np.frombuffer(raw, np.int64, count, 34 + 4 * count)
    boundaries = np.frombuffer(raw, np.int64, bounds, 34 + 12 * count)
    assert len(raw) == 34 + 12 * count + 8 * bounds
    assert (boundaries == np.arange(bounds)).all()
    data = open(prefix + ".bin", "rb").read()
    kind = np.dtype(TYPES[code])
    return code, [np.frombuffer(data, kind, n, o).astype(np.int64) for n, o in zip(lengths, offsets)]


def split_bounds(text, size, core):
    shares = [float(part) for part in text.replace("/", ",").split(",")]
    if core:
        shares = (np.array(shares) / np.sum(shares)).tolist()
        ends = [0]
        for share in shares:
            ends.append(ends[-1] + share)
        return [int(round(end * float(size))) for end in ends]
    total = 0.0
    for share in shares:
        total += share
    bounds = [0]
    for share in shares:
        bounds.append(bounds[-1] + int(round(share / total * float(size))))
    over = bounds[-1] - size
    return [0] + [bound - over for bound in bounds[1:]]


def index_maps(documents, sizes, n, seq, seed):
    """documents: their numbers, repeated where they are shorter than a row. Returns the three arrays, or None where there is no token."""
    tokens = int(np.sum(sizes[documents]))
    if tokens < 1:
        return None
    epochs = 1
    while (epochs * tokens - 1) // seq < n:
        epochs += 1
    before = ((epochs - 1) * tokens - 1) // seq
    separate = epochs > 1 and n - before < int(0.80 * ((tokens - 1) // seq))
    random = np.random.RandomState(seed)

    def shuffled(values):
        random.shuffle(values)
        return values

    if separate:
        order = np.concatenate([shuffled(np.tile(documents, epochs - 1).astype(np.int32)), shuffled(documents.astype(np.int32))])
    else:
        order = shuffled(np.tile(documents, epochs).astype(np.int32))
    # Token i seq of the concatenated documents belongs to the first document that ends after it.
    ends = np.cumsum(sizes[order].astype(np.int64))
    rows = (epochs * tokens - 1) // seq
    at = np.arange(rows + 1, dtype=np.int64) * seq
    place = np.searchsorted(ends, at, side="right")
    begins = ends - sizes[order]
    samples = np.stack([place, at - begins[place]], axis=1).astype(np.int32)
    samples[0] = 0, 0  # also where the first document has no token
    first = before if separate else rows
    shuffle = np.concatenate([shuffled(np.arange(first, dtype=np.uint32)), shuffled(np.arange(first, rows, dtype=np.uint32))])
    return order, samples, shuffle.astype(np.uint32), epochs


def row(files, maps, index, seq):
    order, samples, shuffle, _ = maps
    flat = int(shuffle[index])
    (begin, offset), (end, last) = samples[flat], samples[flat + 1]
    parts = []
    for place in range(begin, end + 1):
        document = files[order[place]]
        parts.append(document[offset if place == begin else 0:last + 1 if place == end else len(document)])
    tokens = np.concatenate(parts)
    assert len(tokens) == seq + 1
    return tokens


def blend(weights, size):
    weights = np.array(weights, np.float64)
    weights /= np.sum(weights)
    taken = [0] * len(weights)
    order = []
    for position in range(size):
        behind = [w * max(float(position), 1.0) - float(t) for w, t in zip(weights, taken)]
        part = int(np.argmax(behind))
        order.append((part, taken[part]))
        taken[part] += 1
    return order, taken


def normalised(weights, core):
    if core:
        return (np.array(weights, np.float64) / np.sum(weights)).tolist()
    total = 0.0
    for weight in weights:
        total += weight
    return [weight / total for weight in weights]


def cases():
    random = np.random.default_rng(20261122)
    for number in range(50):
        core = bool(random.integers(2))
        count = int(random.choice([1, 1, 1, 2, 3, 5, 9, 30]))
        splits = str(random.choice(["99990,8,2", "80,15,5", "1,1,1", "0.8/0.1/0.1", "969, 30, 1", "6,5,5", ""]))
        few = splits in ("99990,8,2", "969, 30, 1")  # documents outside train
        yield {
            "number": number, "rules": "core" if core else "nemo", "seq": int(random.integers(2, 40)), "n": int(random.integers(1, 900)),
            "seed": int(random.choice([0, 1, 1234, 2**32 - 1, random.integers(2**32)])),
            "splits": splits, "split": 0 if few and number % 5 else int(random.integers(3)),
            "weights": ([], [1.0], [0.3])[number % 3] if count == 1 else [round(float(w), 4) for w in random.uniform(0.005, 1, count)],
            "sizes": [random.integers(0, random.choice([10, 30, 300]), size=int(random.integers(30, 150))).tolist() for _ in range(count)],
            "code": int(random.choice([3, 4, 5, 8])),
        }


def expected(case, files):
    """Rows of a case, or what it is refused for."""
    core = case["rules"] == "core"
    name = ["train", "valid", "test"][case["split"]]
    # One path with a weight is a blend, but for core where train, valid and test have files of their own.
    is_blend = len(files) > 1 or (case["weights"] and (not core or case["splits"]))
    weights = normalised(case["weights"], core)
    if not is_blend:
        wanted = [case["n"]]
    elif core:
        wanted = [math.ceil(math.ceil(case["n"] * w) * 1.005) for w in weights]
    else:
        wanted = [int(math.ceil(case["n"] * w * 1.005)) for w in weights]
    maps = []
    for i, documents in enumerate(files):
        sizes = np.array([len(d) for d in documents], np.int32)
        bounds = split_bounds(case["splits"], len(documents), core) if case["splits"] else [0, len(documents)]
        chosen = case["split"] if case["splits"] else 0
        if bounds[chosen + 1] <= bounds[chosen]:
            return None, "none of the"
        built = index_maps(np.arange(bounds[chosen], bounds[chosen + 1]), sizes, wanted[i], case["seq"], case["seed"])
        if built is None:
            return None, "tokens in"
        maps.append((f"case{case['number']}_{i}_{name}_indexmap_{wanted[i]}ns_{case['seq']}sl_{case['seed']}s{'_core' if core else ''}", built))
    if not is_blend:
        rows = [row(files[0], maps[0][1], i, case["seq"]) for i in range(len(maps[0][1][2]))]
        return maps, rows
    size = sum(math.ceil(case["n"] * w) for w in weights) if core else sum(wanted)
    order, _ = blend(weights, size)
    if any(sample >= len(maps[part][1][2]) for part, sample in order[:case["n"]]):
        return None, "the blend takes"
    rows = [row(files[part], maps[part][1], sample, case["seq"]) for part, sample in order if sample < len(maps[part][1][2])]
    return maps, rows


def make(folder):
    lines = []
    for case in cases():
        random = np.random.default_rng(case["number"])
        files = []
        for i, sizes in enumerate(case["sizes"]):
            documents = [random.integers(0, 30000, n) for n in sizes]
            write_indexed(f"{folder}/case{case['number']}_{i}", documents, case["code"], modes=case["number"] % 7 == 0 and len(documents) > 0)
            files.append(documents)
        maps, rows = expected(case, files)
        line = {"files": len(files)} | {key: case[key] for key in ("number", "rules", "seq", "n", "seed", "splits", "split", "weights")}
        if maps is None:
            line["refused"] = rows
        else:
            np.asarray(rows, "<i4").tofile(f"{folder}/case{case['number']}.rows")
            line["rows"] = len(rows)
        lines.append(json.dumps(line))
    open(f"{folder}/cases.jsonl", "w").write("\n".join(lines) + "\n")
    print(sum("rows" in line for line in lines), sum("refused" in line for line in lines))


def check(folder):
    compared = 0
    for case in cases():
        files = [read_indexed_any(f"{folder}/case{case['number']}_{i}") for i in range(len(case["sizes"]))]
        maps, _ = expected(case, files)
        for name, (order, samples, shuffle, _) in maps or []:
            for suffix, mine in (("doc_idx", order), ("sample_idx", samples), ("shuffle_idx", shuffle)):
                theirs = np.load(f"{folder}/cache/{name}_{suffix}.npy", mmap_mode="r")
                assert theirs.dtype == mine.dtype and theirs.shape == mine.shape, (name, suffix, theirs.dtype, theirs.shape, mine.shape)
                assert (theirs == mine).all(), (name, suffix)
                compared += 1
    print(compared)


def core():
    """77 without megatron-core: `pip install megatron-core` into a venv that has torch."""
    try:
        import torch
        from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
        from megatron.core.datasets.utils import compile_helpers  # noqa: F401
        from megatron.core.datasets import helpers  # noqa: F401
    except ImportError as missing:
        print(f"SKIPPED: megatron-core is not there ({missing})")
        sys.exit(77)

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)

    class Tokenizer:
        eod = pad = vocab_size = 30000
        unique_identifiers = {"class": "none"}

    compared = refused = 0
    for case in cases():
        case["rules"] = "core"
        with tempfile.TemporaryDirectory() as folder:
            random = np.random.default_rng(case["number"])
            files = []
            for i, sizes in enumerate(case["sizes"]):
                files.append([random.integers(0, 30000, n) for n in sizes])
                write_indexed(f"{folder}/{i}", files[-1], case["code"])
            maps, rows = expected(case, files)
            chosen = case["split"] if case["splits"] else 0
            blend_of = ([f"{folder}/{i}" for i in range(len(files))], case["weights"] or None)
            settings = {"blend": blend_of, "split": case["splits"].replace("/", ",")} if case["splits"] else {"blend_per_split": [blend_of, None, None]}
            config = GPTDatasetConfig(random_seed=case["seed"], sequence_length=case["seq"], path_to_cache=f"{folder}/cache", reset_position_ids=False,
                                      reset_attention_mask=False, eod_mask_loss=False, tokenizer=Tokenizer(), mid_level_dataset_surplus=0.005, **settings)
            if case["splits"]:
                config.split_matrix = [share if i == chosen else None for i, share in enumerate(config.split_matrix)]
            if maps is None:
                refused += 1
                continue
            data = BlendedMegatronDatasetBuilder(GPTDataset, [case["n"]] * 3, lambda: True, config).build()[chosen]
            assert len(data) >= case["n"], (case["number"], len(data))
            for index in range(case["n"]):
                theirs = data[index]
                mine = rows[index]
                assert (theirs["tokens"].numpy() == mine[:-1]).all() and (theirs["labels"].numpy() == mine[1:]).all(), (case["number"], index)
                compared += 1
    print(compared, "rows equal,", refused, "configurations refused")
    assert compared > 10000


def read_indexed_any(prefix):
    raw = open(prefix + ".idx", "rb").read()
    _, code, count, _ = struct.unpack("<QBQQ", raw[9:34])
    lengths = np.frombuffer(raw, np.int32, count, 34)
    data = np.fromfile(prefix + ".bin", TYPES[code])
    return np.split(data, np.cumsum(lengths)[:-1]) if count else []


def read(folder):
    tokens, lengths = np.load(f"{folder}/tokens.npy")[0], np.load(f"{folder}/lengths.npy")[0]
    code, documents = read_indexed(f"{folder}/packed")
    assert code == 8 and len(documents) == len(lengths), (code, len(documents))
    assert (np.concatenate(documents) == tokens).all()
    assert ([len(d) for d in documents] == lengths).all()
    write_indexed(f"{folder}/back", documents, 8)
    for suffix in (".bin", ".idx"):
        assert open(f"{folder}/packed{suffix}", "rb").read() == open(f"{folder}/back{suffix}", "rb").read(), suffix
    print(len(documents))


def mock(vocabulary):
    print("vocabulary", vocabulary)
    for seed in [*range(200), 1234, 2**31, 2**32 - 1, 2**32, 2**40 + 17, 2**63]:
        for length in (1, 7, 64):
            random = np.random.default_rng(seed=seed)
            print(*random.integers(vocabulary, size=[length], dtype=np.int64), *random.integers(vocabulary, size=[length], dtype=np.int64))


if __name__ == "__main__":
    command, argument = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    {"core": lambda _: core(), "make": make, "check": check, "read": read, "mock": lambda text: [mock(int(part)) for part in text.split(",")]}[command](argument)
