"""Small BERT data, models and reference steps for the tests of train_bert."""
import json
import math
import os

import h5py
import numpy as np

VOCAB, LENGTH = 93, 32


def make_sequence(rng, length, pattern):
    """`pattern`: learnable sequences, one of eight words repeated; otherwise random words."""
    ids = np.full(length, 5 + rng.integers(0, 8)) if pattern else rng.integers(5, VOCAB, size=length)
    ids[0] = 1
    label = int(rng.integers(0, 2))
    middle = length // 2
    ids[middle] = 2 if label == 0 else 3
    masked = np.sort(rng.choice(np.arange(1, length - 1), size=max(1, round(0.15 * length)), replace=False))
    true = ids[masked].copy()
    ids[masked] = 4
    return dict(ids=ids, types=(np.arange(length) > middle).astype(int), masked=masked, true=true, label=label)


def make_rows(seed, rows, pattern):
    """Packs of one to three sequences, at most LENGTH tokens."""
    rng = np.random.default_rng(seed)
    packs = []
    for index in range(rows):
        lengths = [[LENGTH], [20, 12], [9, 7, 15], [8, 23]][index % 4]
        packs.append([make_sequence(rng, n, pattern) for n in lengths])
    return packs


def write_vlen(out, name, kind, values):
    dataset = out.create_dataset(name, (len(values),), dtype=h5py.vlen_dtype(np.dtype(kind)))
    for index, value in enumerate(values):
        dataset[index] = np.asarray(value, dtype=kind)


def write_packed(path, packs):
    with h5py.File(path, "w") as out:
        write_vlen(out, "input_ids", "i2", [np.concatenate([s["ids"] for s in p]) for p in packs])
        write_vlen(out, "segment_ids", "i1", [np.concatenate([s["types"] for s in p]) for p in packs])
        offsets = [np.cumsum([0] + [len(s["ids"]) for s in p]) for p in packs]
        write_vlen(out, "masked_lm_positions", "i2", [np.concatenate([s["masked"] + o for s, o in zip(p, off)]) for p, off in zip(packs, offsets)])
        write_vlen(out, "masked_lm_ids", "i2", [np.concatenate([s["true"] for s in p]) for p in packs])
        write_vlen(out, "packed_input_len", "i2", [[len(s["ids"]) for s in p] for p in packs])
        write_vlen(out, "packed_masked_lm_len", "i2", [[len(s["masked"]) for s in p] for p in packs])
        write_vlen(out, "next_sentence_labels", "i1", [[s["label"] for s in p] for p in packs])


def write_single(path, sequences):
    with h5py.File(path, "w") as out:
        write_vlen(out, "input_ids", "i2", [s["ids"] for s in sequences])
        write_vlen(out, "segment_ids", "i1", [s["types"] for s in sequences])
        write_vlen(out, "masked_lm_positions", "i2", [s["masked"] for s in sequences])
        write_vlen(out, "masked_lm_ids", "i2", [s["true"] for s in sequences])
        out.create_dataset("next_sentence_labels", data=np.array([s["label"] for s in sequences], dtype="i1"))


def write_data(directory, rows, valid=11, pattern=False):
    """packed/part_00000, part_00001 and eval.hdf5 in `directory`; the packs in file order and the evaluation's sequences."""
    packs, sequences = make_rows(1, rows, pattern), [p[0] for p in make_rows(2, valid, pattern)]
    os.makedirs(f"{directory}/packed", exist_ok=True)
    write_packed(f"{directory}/packed/part_00000", packs[: rows // 2])
    write_packed(f"{directory}/packed/part_00001", packs[rows // 2:])
    write_single(f"{directory}/eval.hdf5", sequences)
    return packs, sequences


def small_config(**extra):
    base = dict(architectures=["BertForPreTraining"], model_type="bert", vocab_size=VOCAB, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
                intermediate_size=80, max_position_embeddings=40, type_vocab_size=2, hidden_act="gelu", hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0, initializer_range=0.05, layer_norm_eps=1e-12)
    return {**base, **extra}


def write_config(directory, **extra):
    os.makedirs(directory, exist_ok=True)
    with open(f"{directory}/config.json", "w") as out:
        json.dump(small_config(**extra), out)


class Lamb:
    """LAMB as the MLPerf submissions run it, in NumPy fp64: clipping by the global norm, bias correction, eps outside the root, decoupled decay;
    the trust ratio on decayed tensors only."""

    def __init__(self, weights, decays, betas, eps, decay, clip):
        self.w = {name: value.astype(np.float64) for name, value in weights.items()}
        self.m = {name: np.zeros_like(value) for name, value in self.w.items()}
        self.v = {name: np.zeros_like(value) for name, value in self.w.items()}
        self.decays, self.betas, self.eps, self.decay, self.clip, self.t = decays, betas, eps, decay, clip, 0

    def step(self, gradients, lr):
        norm = math.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients.values()))
        scale = min(1.0, self.clip / (norm + 1e-6)) if self.clip > 0 else 1.0
        self.t += 1
        for name, w in self.w.items():
            g = gradients[name].astype(np.float64) * scale
            self.m[name] = self.betas[0] * self.m[name] + (1 - self.betas[0]) * g
            self.v[name] = self.betas[1] * self.v[name] + (1 - self.betas[1]) * g * g
            u = (self.m[name] / (1 - self.betas[0] ** self.t)) / (np.sqrt(self.v[name] / (1 - self.betas[1] ** self.t)) + self.eps)
            ratio = 1.0
            if self.decays[name]:
                u = u + self.decay * w
                a, b = np.linalg.norm(w), np.linalg.norm(u)
                ratio = a / b if a > 0 and b > 0 else 1.0
            self.w[name] = w - lr * ratio * u
        return norm
