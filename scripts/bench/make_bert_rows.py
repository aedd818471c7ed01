#!/usr/bin/env python3
"""Writes a BERT's config.json and packed HDF5 shards of random tokens with the row statistics of the MLPerf data: make_bert_rows.py SHAPE ROWS DIRECTORY.

Rows of 512 tokens (tiny: 64) with one to three sequences, two on average; 1 in 14 rows is some tokens short; 15 % of the tokens masked."""
import json
import os
import sys

import h5py
import numpy as np

SHAPES = {"large": (1024, 24, 16, 4096, 512), "base": (768, 12, 12, 3072, 512), "tiny": (64, 2, 4, 128, 64)}
VOCAB = 30522


def row(rng, length, index):
    count = (2, 1, 2, 3, 2)[index % 5]
    total = length - (rng.integers(1, length // 5) if index % 14 == 9 else 0)
    while True:
        cuts = np.sort(rng.choice(np.arange(1, total), size=count - 1, replace=False))
        lengths = np.diff(np.concatenate([[0], cuts, [total]]))
        if lengths.min() >= 8:
            break
    fields = {name: [] for name in ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids")}
    masks, offset = [], 0
    for n in lengths:
        masked = np.sort(rng.choice(np.arange(1, n - 1), size=min(76, max(1, round(0.15 * n))), replace=False)) + offset
        fields["input_ids"].append(rng.integers(1000, VOCAB, size=n))
        fields["segment_ids"].append((np.arange(n) >= n // 2).astype(int))
        fields["masked_lm_positions"].append(masked)
        fields["masked_lm_ids"].append(rng.integers(1000, VOCAB, size=len(masked)))
        masks.append(len(masked))
        offset += n
    result = {name: np.concatenate(parts) for name, parts in fields.items()}
    result["packed_input_len"], result["packed_masked_lm_len"] = lengths, np.array(masks)
    result["next_sentence_labels"] = rng.integers(0, 2, size=count)
    return result


def main():
    shape, rows, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    hidden, layers, heads, ffn, length = SHAPES[shape]
    with open(f"{directory}/config.json", "w") as out:
        json.dump(dict(architectures=["BertForPreTraining"], model_type="bert", hidden_size=hidden, num_hidden_layers=layers,
                       num_attention_heads=heads, intermediate_size=ffn, vocab_size=VOCAB, max_position_embeddings=length, type_vocab_size=2,
                       hidden_act="gelu_pytorch_tanh", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1), out)
    os.makedirs(f"{directory}/packed", exist_ok=True)
    rng = np.random.default_rng(0)
    data = [row(rng, length, index) for index in range(rows)]
    types = dict(input_ids="i2", segment_ids="i1", masked_lm_positions="i2", masked_lm_ids="i2", packed_input_len="i2",
                 packed_masked_lm_len="i2", next_sentence_labels="i1")
    with h5py.File(f"{directory}/packed/part_00000", "w") as out:
        for name, kind in types.items():
            dataset = out.create_dataset(name, (rows,), dtype=h5py.vlen_dtype(np.dtype(kind)))
            dataset[:] = np.array([r[name].astype(kind) for r in data] + [None], dtype=object)[:-1]
    print(f"{rows} rows, {sum(len(r['packed_input_len']) for r in data) / rows:.3f} sequences a row, "
          f"{sum(len(r['input_ids']) for r in data) / rows / length:.4f} full, "
          f"{sum(len(r['masked_lm_ids']) for r in data) / rows:.1f} masked words a row")


if __name__ == "__main__":
    main()
