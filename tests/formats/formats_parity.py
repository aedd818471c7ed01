#!/usr/bin/env python3
"""train_llama with files of other tools: NumPy 1.x and 2.x records, HDF5 from h5py, a NeMo zarr directory. The losses must equal those of the same data in plain form. Exit code 77 = skipped."""
import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train"))
from run_site import needed, np  # noqa: E402
from tiny_llama import write_llama  # noqa: E402

with needed():
    import h5py
    from safetensors.numpy import load_file

SEQ, VOCAB, ROWS = 32, 90, 12


def losses(args, work, name, data, model="base", refusal=None):
    with open(f"{work}/{name}.yaml", "w") as out:
        out.write(f"""model: {{path: {model}}}
lora: {{r: 4, alpha: 8, dropout: 0, target_modules: [q_proj, v_proj, down_proj]}}
data: {{train: {data}, seq_length: {SEQ}}}
batch: {{global_batch_size: 4}}
train: {{max_steps: 3}}
precision: {{compute: fp32}}
output: {{dir: run-{name}}}
""")
    done = subprocess.run([f"{args.bin}/train_llama", "--config", f"{work}/{name}.yaml"], capture_output=True, text=True)
    if refusal:
        assert done.returncode == 3 and refusal in done.stderr, done.stderr[-1500:]
        return None
    assert done.returncode == 0, f"{name}: exit {done.returncode}: {done.stderr[-1500:]}"
    return [m["loss"] for m in map(json.loads, open(f"{work}/run-{name}/metrics.jsonl")) if m["event"] == "train"]


def records(ids, of_ids=lambda row: row.astype(np.int32), mask=[1] * SEQ, starts=[0]):
    array = np.empty(len(ids), dtype=object)
    for i, row in enumerate(ids):
        array[i] = {"input_ids": of_ids(row), "loss_mask": mask, "seq_start_id": starts}
    return array


def write_zarr(path, tensors, layers, heads, kv, head_dim):
    def array(name, data, chunks):
        folder = f"{path}/weights/module.{name}"
        os.makedirs(folder)
        json.dump(dict(zarr_format=2, shape=list(data.shape), chunks=list(chunks), dtype="<f4", compressor=None, filters=None, order="C",
                       fill_value=None), open(f"{folder}/.zarray", "w"))
        for index in np.ndindex(*[-(-s // c) for s, c in zip(data.shape, chunks)]):
            part = data[tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, chunks))]
            part.astype("<f4").tofile(f"{folder}/" + ".".join(map(str, index)))

    get = lambda layer, name: tensors[f"model.layers.{layer}.{name}.weight"]
    stack = lambda name: np.stack([get(l, name) for l in range(layers)])
    qkv = []
    for l in range(layers):
        q, k, v = (get(l, f"self_attn.{p}_proj") for p in "qkv")
        width = heads // kv * head_dim
        qkv.append(np.concatenate([np.concatenate([q[g * width:(g + 1) * width], k[g * head_dim:(g + 1) * head_dim],
                                                   v[g * head_dim:(g + 1) * head_dim]]) for g in range(kv)]))
    qkv = np.stack(qkv)
    fc1 = np.stack([np.concatenate([get(l, "mlp.gate_proj"), get(l, "mlp.up_proj")]) for l in range(layers)])
    root = "decoder.layers."
    array("embedding.word_embeddings.weight", tensors["model.embed_tokens.weight"], tensors["model.embed_tokens.weight"].shape)
    array("output_layer.weight", tensors["lm_head.weight"], tensors["lm_head.weight"].shape)
    array("decoder.final_layernorm.weight", tensors["model.norm.weight"], tensors["model.norm.weight"].shape)
    array(root + "self_attention.linear_qkv.layer_norm_weight", stack("input_layernorm"), (1, stack("input_layernorm").shape[1]))
    array(root + "self_attention.linear_qkv.weight", qkv, (1,) + qkv.shape[1:])
    proj = stack("self_attn.o_proj")
    array(root + "self_attention.linear_proj.weight", proj, (1,) + proj.shape[1:])
    array(root + "mlp.linear_fc1.layer_norm_weight", stack("post_attention_layernorm"), (1, stack("input_layernorm").shape[1]))
    array(root + "mlp.linear_fc1.weight", fc1, (1, fc1.shape[1] // 2, fc1.shape[2]))
    fc2 = stack("mlp.down_proj")
    array(root + "mlp.linear_fc2.weight", fc2, (1,) + fc2.shape[1:])
    os.makedirs(f"{path}/context")
    hidden, ffn = tensors["model.embed_tokens.weight"].shape[1], fc2.shape[2]
    open(f"{path}/context/model.yaml", "w").write(f"""_target_: nemo.collections.llm.gpt.model.llama.DecoderModel
config:
  _target_: nemo.collections.llm.gpt.model.llama.Llama2Config70B
  num_layers: {layers}
  hidden_size: {hidden}
  ffn_hidden_size: {ffn}
  num_attention_heads: {heads}
  num_query_groups: {kv}
  kv_channels: {head_dim}
  seq_length: 128
  rotary_base: 10000
  layernorm_epsilon: 1.0e-05
  normalization: RMSNorm
  gated_linear_unit: true
  add_bias_linear: false
  share_embeddings_and_output_weights: false
""")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        write_llama(f"{work}/base", VOCAB, intermediate=48)
        ids = np.random.default_rng(3).integers(0, VOCAB, size=(ROWS, SEQ)).astype(np.int32)
        np.save(f"{work}/plain.npy", ids)
        want = losses(args, work, "plain", "plain.npy")

        np.save(f"{work}/numpy2.npy", records(ids), allow_pickle=True)
        np.save(f"{work}/scalars.npy", records(ids, list, [np.bool_(True)] * SEQ, (np.int64(0),)), allow_pickle=True)
        np.save(f"{work}/tuples.npy", records(ids, lambda row: tuple(row.astype(">u2")), (1,) * SEQ), allow_pickle=True)
        floats = records(ids)
        floats[1]["input_ids"] = [1.5] * SEQ
        np.save(f"{work}/floats.npy", floats, allow_pickle=True)
        losses(args, work, "floats", "floats.npy", refusal="(record 1): pickle operation 0x47")
        # NumPy 1.x: protocol 3 and its module names.
        body = pickle.dumps(records(ids), protocol=3).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        header = b"{'descr': '|O', 'fortran_order': False, 'shape': (%d,), }" % ROWS
        header += b" " * (118 - len(header) - 1) + b"\n"
        open(f"{work}/numpy1.npy", "wb").write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body)
        for name, options in (("plain5", {}), ("gzip5", dict(compression="gzip")), ("big5", dict(dtype=">i4"))):
            with h5py.File(f"{work}/{name}.h5", "w") as out:
                out.create_dataset("input_ids", data=ids, **options)
        # Rows of two sequences, whose starts are stored in every way that h5py has.
        for name, options in (("starts5", {}), ("chunked5", dict(chunks=(5,))), ("packed5", dict(chunks=(2,), shuffle=True, compression="gzip"))):
            with h5py.File(f"{work}/{name}.h5", "w") as out:
                out.create_dataset("input_ids", data=ids, chunks=(4, 8), shuffle=True, compression="gzip", fletcher32=True)
                starts = out.create_dataset("seq_start_id", (ROWS,), h5py.vlen_dtype(np.dtype("i8")), **options)
                for row in range(ROWS):
                    starts[row] = np.array([0, 7 + row])
        separate = [losses(args, work, name, f"{name}.h5") for name in ("starts5", "chunked5", "packed5")]
        assert separate[0] == separate[1] == separate[2] != want, (separate, want)
        for name, kind, version in (("mask5", np.int8, "earliest"), ("bools5", bool, "earliest"), ("newbools5", bool, "v108")):
            with h5py.File(f"{work}/{name}.h5", "w", libver=version) as out:
                out["input_ids"], out["loss_mask"] = ids, (ids % 2).astype(kind)
        masked = [losses(args, work, name, f"{name}.h5") for name in ("mask5", "bools5", "newbools5")]
        assert masked[0] == masked[1] == masked[2] != want, (masked, want)
        with h5py.File(f"{work}/square5.h5", "w") as out:
            out["input_ids"], out["seq_start_id"] = ids, np.zeros((ROWS, 3), np.int32)
        losses(args, work, "square5", "square5.h5", refusal="dataset seq_start_id has 2 dimensions, expected 1: a list of variable length for each row")
        np.save(f"{work}/big.npy", ids.astype(">i8"))
        np.save(f"{work}/fortran.npy", np.asfortranarray(ids.astype(np.uint16)))
        for data in ("numpy2.npy", "scalars.npy", "tuples.npy", "numpy1.npy", "plain5.h5", "gzip5.h5", "big5.h5", "big.npy", "fortran.npy"):
            got = losses(args, work, data.split(".")[0] + "-run", data)
            assert got == want, f"{data}: {got} against {want}"

        tensors = load_file(f"{work}/base/model.safetensors")
        write_zarr(f"{work}/nemo", tensors, 2, 4, 2, 8)
        got = losses(args, work, "zarr", "plain.npy", model="nemo")
        assert got == want, f"zarr: {got} against {want}"
        print("all formats give", want)


if __name__ == "__main__":
    main()
