#!/usr/bin/env python3
"""Writes a Hugging Face Llama directory of a given shape for measuring start-up: random bf16 values, the same in every block, sharded
like large models.

    scripts/bench/make_checkpoint.py DIRECTORY [--layers 80] [--hidden 8192] [--ffn 28672] [--heads 64] [--kv-heads 8] [--vocab 32000]
"""
import argparse
import concurrent.futures
import json
import os
import struct
import sys
import time

import numpy as np


def random_bf16(count, generator):
    values = generator.standard_normal(1 << 22, dtype=np.float32) * np.float32(0.02)
    block = (values.view(np.uint32) >> 16).astype(np.uint16)
    return np.resize(block, count)


def write_shard(path, tensors):
    header, offset = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + data.nbytes]}
        offset += data.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", buffering=0) as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            view = memoryview(data).cast("B")
            while view:
                view = view[out.write(view[: 1 << 28]):]
    return offset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    for name, default in [("layers", 80), ("hidden", 8192), ("ffn", 28672), ("heads", 64), ("kv-heads", 8), ("vocab", 32000)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    d, f, kv = args.hidden, args.ffn, args.hidden // args.heads * args.kv_heads
    os.makedirs(args.directory, exist_ok=True)
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=d, intermediate_size=f, num_hidden_layers=args.layers,
                  num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, vocab_size=args.vocab, max_position_embeddings=8192,
                  rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False, initializer_range=0.02, torch_dtype="bfloat16")
    json.dump(config, open(f"{args.directory}/config.json", "w"))

    generator = np.random.default_rng(0)
    ones = np.full(d, 0x3F80, np.uint16)
    shapes = {"self_attn.q_proj": (d, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d), "self_attn.o_proj": (d, d),
              "mlp.gate_proj": (f, d), "mlp.up_proj": (f, d), "mlp.down_proj": (d, f)}
    block = {name: (list(shape), random_bf16(shape[0] * shape[1], generator)) for name, shape in shapes.items()}
    table = random_bf16(args.vocab * d, generator)
    shards = [{"model.embed_tokens.weight": ([args.vocab, d], table), "lm_head.weight": ([args.vocab, d], table),
               "model.norm.weight": ([d], ones)}]
    for layer in range(args.layers):
        prefix = f"model.layers.{layer}."
        shard = {f"{prefix}{name}.weight": value for name, value in block.items()}
        shard[f"{prefix}input_layernorm.weight"] = shard[f"{prefix}post_attention_layernorm.weight"] = ([d], ones)
        if layer % 4 == 0:
            shards.append({})
        shards[-1].update(shard)
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    begin, total = time.time(), 0
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for done, size in enumerate(pool.map(write_shard, [f"{args.directory}/{n}" for n in names], shards), 1):
            total += size
            print(f"\r{done}/{len(shards)} files, {total / 2**30:.1f} GiB", end="", file=sys.stderr)
    index = {"metadata": {"total_size": total}, "weight_map": {tensor: name for name, shard in zip(names, shards) for tensor in shard}}
    json.dump(index, open(f"{args.directory}/model.safetensors.index.json", "w"))
    print(f"\n{args.directory}: {total / 2**30:.1f} GiB in {time.time() - begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
