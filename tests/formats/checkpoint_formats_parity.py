#!/usr/bin/env python3
"""Checkpoints of other frameworks, written independently of Trireme: NeMo's zarr directories with the zarr package, in the layouts of NeMo 1
and 2 with the chunks of tensor parallelism; TensorFlow bundles by the documentation of LevelDB's tables and tensor_bundle.proto, with
several data files. The values read must equal those written. Exit code 77 = skipped.

usage: checkpoint_formats_parity.py --bin DIRECTORY"""
import argparse
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import h5py  # noqa: F401  needed by bert_site
    import numpy as np
    import zarr
    from safetensors.numpy import load_file
except ImportError as error:
    print(f"SKIPPED: {error}; scripts/setup.sh installs what this test needs")
    sys.exit(77)

LAYERS, HIDDEN, FFN, HEADS, GROUPS, HEAD_DIM, VOCAB = 3, 24, 40, 6, 2, 4, 52


def run(binaries, program, *arguments, code=0, says=""):
    done = subprocess.run([f"{binaries}/{program}", *map(str, arguments)], capture_output=True, text=True)
    text = done.stdout + done.stderr
    assert done.returncode == code, f"{program} {arguments}: exit {done.returncode}, not {code}\n{text[-2000:]}"
    assert says in text, f"{program} {arguments}: no '{says}' in\n{text[-2000:]}"


# ---- NeMo

def megatron_arrays(rng):
    """The arrays in Megatron's layout, and the same numbers under Hugging Face names."""
    hf = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    query = HEADS * HEAD_DIM
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        hf |= {p + "input_layernorm.weight": (HIDDEN,), p + "post_attention_layernorm.weight": (HIDDEN,), p + "self_attn.q_proj.weight": (query, HIDDEN),
               p + "self_attn.k_proj.weight": (GROUPS * HEAD_DIM, HIDDEN), p + "self_attn.v_proj.weight": (GROUPS * HEAD_DIM, HIDDEN),
               p + "self_attn.o_proj.weight": (HIDDEN, query), p + "mlp.gate_proj.weight": (FFN, HIDDEN), p + "mlp.up_proj.weight": (FFN, HIDDEN),
               p + "mlp.down_proj.weight": (HIDDEN, FFN)}
    # Values that are exact in bfloat16.
    hf = {name: (rng.integers(-128, 128, size=shape) / 64).astype(np.float32) for name, shape in hf.items()}

    def stack(name):
        return np.stack([hf[f"model.layers.{layer}.{name}.weight"] for layer in range(LAYERS)])

    def groups(name):  # [layers, groups, rows of a group, hidden]
        return stack(f"self_attn.{name}").reshape(LAYERS, GROUPS, -1, HIDDEN)

    qkv = np.concatenate([groups("q_proj"), groups("k_proj"), groups("v_proj")], axis=2).reshape(LAYERS, -1, HIDDEN)
    root = "decoder.layers."
    return hf, {
        "embedding.word_embeddings.weight": hf["model.embed_tokens.weight"], "output_layer.weight": hf["lm_head.weight"],
        "decoder.final_layernorm.weight": hf["model.norm.weight"], root + "self_attention.linear_qkv.layer_norm_weight": stack("input_layernorm"),
        root + "self_attention.linear_qkv.weight": qkv, root + "self_attention.linear_proj.weight": stack("self_attn.o_proj"),
        root + "mlp.linear_fc1.layer_norm_weight": stack("post_attention_layernorm"),
        root + "mlp.linear_fc1.weight": np.concatenate([stack("mlp.gate_proj"), stack("mlp.up_proj")], axis=1),
        root + "mlp.linear_fc2.weight": stack("mlp.down_proj")}


def chunks_of(name, shape, tensor, pipeline):
    """Megatron: a chunk is a rank's shard. Column-parallel weights are divided along their rows, row-parallel ones along their columns."""
    chunks = list(shape)
    if name.startswith("decoder.layers"):
        chunks[0] = shape[0] // pipeline
    if "linear_qkv.weight" in name or name.startswith(("embedding", "output")):
        chunks[-2] //= tensor
    elif "linear_fc1.weight" in name:
        chunks[-2] //= 2 * tensor  # gate and up are separate
    elif "linear_proj" in name or "linear_fc2" in name:
        chunks[-1] //= tensor
    return tuple(chunks)


def write_arrays(folder, prefix, arrays, dtype, tensor, pipeline, uneven=False, **options):
    for name, data in arrays.items():
        chunks = tuple(min(5, s) for s in data.shape) if uneven else chunks_of(name, data.shape, tensor, pipeline)
        stored = (data.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else data.astype(dtype)
        settings = dict(shape=data.shape, chunks=chunks, dtype=stored.dtype, zarr_format=2, compressors=None, fill_value=None, overwrite=True)
        array = zarr.create_array(store=str(folder / (prefix + name)), **{**settings, **options})
        array[...] = stored
        if dtype == "bfloat16":  # as Megatron writes it: NumPy has no such type
            path = folder / (prefix + name) / ".zarray"
            path.write_text(json.dumps({**json.loads(path.read_text()), "dtype": "bfloat16"}))


NEMO2 = """_target_: nemo.collections.llm.gpt.model.llama.DecoderModel
config:
  _target_: nemo.collections.llm.gpt.model.llama.Llama2Config70B
  activation_func: {{_call_: false, _target_: torch.nn.functional.silu}}
  num_layers: {layers}
  hidden_size: {hidden}
  ffn_hidden_size: {ffn}
  num_attention_heads: {heads}
  num_query_groups: {groups}
  kv_channels: {head_dim}
  seq_length: 64
  rotary_base: 500000
  layernorm_epsilon: 1.0e-05
  normalization: RMSNorm
  gated_linear_unit: true
  add_bias_linear: false
  share_embeddings_and_output_weights: false
  {extra}
"""
NEMO1 = """mcore_gpt: true
encoder_seq_length: 64
max_position_embeddings: 64
num_layers: {layers}
hidden_size: {hidden}
ffn_hidden_size: {ffn}
num_attention_heads: {heads}
num_query_groups: {groups}
kv_channels: null
normalization: rmsnorm
activation: fast-swiglu
bias: false
layernorm_epsilon: 1.0e-05
position_embedding_type: rope
rotary_percentage: 1.0
rotary_base: 500000
seq_len_interpolation_factor: null
share_embeddings_and_output_weights: false
{extra}
"""


def nemo_config(text, extra=""):
    return text.format(layers=LAYERS, hidden=HIDDEN, ffn=FFN, heads=HEADS, groups=GROUPS, head_dim=HEAD_DIM, extra=extra)


def check_nemo(binaries, work):
    hf, arrays = megatron_arrays(np.random.default_rng(11))
    for number, (layout, dtype, tensor, pipeline, options) in enumerate([
            ("nemo2", "bfloat16", 1, 3, {}), ("nemo1", "bfloat16", 2, 1, {}), ("nemo2", "<f4", 2, 3, dict(chunk_key_encoding={"name": "v2", "separator": "/"})),
            ("nemo1", "<f2", 1, 1, dict(uneven=True))]):
        source = work / f"source-{number}"
        folder = source / ("weights" if layout == "nemo2" else "model_weights")
        write_arrays(folder, "module." if layout == "nemo2" else "model.", arrays, dtype, tensor, pipeline, **options)
        (folder / "metadata.json").write_text('{"sharded_backend": "zarr", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}')
        (folder / "common.pt").write_bytes(b"a pickle that nobody opens")
        config = source / ("context/model.yaml" if layout == "nemo2" else "model_config.yaml")
        config.parent.mkdir(exist_ok=True)
        config.write_text(nemo_config(NEMO2 if layout == "nemo2" else NEMO1))
        out = work / "read"
        run(binaries, "trireme", "model", "resize-vocab", "--model", source, "--output", out, "--pad-to", 1, "--force")
        content = load_file_any(out / "model.safetensors")
        assert content.keys() == hf.keys(), layout
        for name, want in hf.items():
            assert np.array_equal(content[name], want), f"{layout}, {dtype}, tensor {tensor}, pipeline {pipeline}: {name}"
        read = json.loads((out / "config.json").read_text())
        assert read["rope_theta"] == 500000 and read["num_key_value_heads"] == GROUPS and read["head_dim"] == HEAD_DIM, read
        assert read["trireme_added_rows"] == {"first": read["vocab_size"]}, read

    # Settings that change the computation are read, or refused by name.
    context = work / "source-0/context/model.yaml"
    context.write_text(nemo_config(NEMO2, "scale_factor: 8\n  low_freq_factor: 1\n  high_freq_factor: 4\n  old_context_len: 32"))
    run(binaries, "trireme", "model", "resize-vocab", "--model", work / "source-0", "--output", work / "read", "--pad-to", 1, "--force")
    assert json.loads((work / "read/config.json").read_text())["rope_scaling"]["original_max_position_embeddings"] == 32
    context.write_text(nemo_config(NEMO2, "scale_positional_embedding: true"))
    run(binaries, "trireme", "model", "resize-vocab", "--model", work / "source-0", "--output", work / "read", "--pad-to", 1, "--force")
    scaling = json.loads((work / "read/config.json").read_text())["rope_scaling"]
    assert (scaling["rope_type"], scaling["factor"], scaling["original_max_position_embeddings"]) == ("llama3", 8, 8192), scaling
    context.write_text(nemo_config(NEMO2, "layernorm_zero_centered_gamma: true\n  qk_layernorm: true\n  window_size: [4096, 0]").replace("functional.silu", "functional.gelu"))
    for words in ("layernorm_zero_centered_gamma: true", "qk_layernorm: true", "window_size: [4096, 0] is not supported", "functional.gelu"):
        run(binaries, "trireme", "model", "resize-vocab", "--model", work / "source-0", "--output", work / "never", "--pad-to", 1, code=4, says=words)
    context.write_text(nemo_config(NEMO2))
    # Compressed arrays, and a missing chunk.
    weights = work / "source-0/weights"
    norm = weights / "module.decoder.final_layernorm.weight"
    (norm / "0").unlink()
    run(binaries, "trireme", "model", "resize-vocab", "--model", work / "source-0", "--output", work / "never", "--pad-to", 1, code=4, says="final_layernorm.weight/0")
    shutil.rmtree(norm)
    zarr.create_array(store=str(norm), shape=(HIDDEN,), chunks=(HIDDEN,), dtype="<f4", zarr_format=2)[...] = 1
    run(binaries, "trireme", "model", "resize-vocab", "--model", work / "source-0", "--output", work / "never", "--pad-to", 1, code=4, says="is compressed")
    assert not (work / "never").exists()


def load_file_any(path):
    """safetensors, bfloat16 as float32."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    tensors = {}
    for name, entry in json.loads(content[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        raw = content[begin:end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[entry["dtype"]]).astype(np.float32)
        tensors[name] = values.reshape(entry["shape"])
    return tensors


# ---- TensorFlow

CRC_TABLE = []
for value in range(256):
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    CRC_TABLE.append(value)


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    """A protobuf field: varint, or bytes; 4 bytes of a tuple are fixed32."""
    if isinstance(value, tuple):
        return varint(number << 3 | 5) + struct.pack("<I", value[0])
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


TYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "bfloat16": 14, "float16": 19, "string": 7}


class Table:
    """LevelDB's table_format.md: data blocks with shared key prefixes, an index block of separators, a footer."""

    def __init__(self, block_size, restart_interval, compress=False):
        self.out, self.block_size, self.interval, self.compress = b"", block_size, restart_interval, compress

    def block(self, entries):
        content, restarts, last = b"", [], b""
        for number, (key, value) in enumerate(entries):
            shared = 0
            if number % self.interval == 0:
                restarts.append(len(content))
            else:
                while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                    shared += 1
            content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
            last = key
        content += b"".join(struct.pack("<I", at) for at in restarts or [0]) + struct.pack("<I", len(restarts) or 1)
        kind = b"\0"
        if self.compress:  # snappy: the length, then literals of at most 60 bytes
            kind = b"\x01"
            pieces = [content[i:i + 60] for i in range(0, len(content), 60)]
            content = varint(len(content)) + b"".join(bytes([(len(piece) - 1) << 2]) + piece for piece in pieces)
        handle = varint(len(self.out)) + varint(len(content))
        self.out += content + kind + struct.pack("<I", masked_crc(content + kind))
        return handle

    def write(self, entries):
        index, pending = [], []
        for key, value in sorted(entries.items()):
            pending.append((key, value))
            if sum(len(k) + len(v) for k, v in pending) >= self.block_size:
                index.append((key, self.block(pending)))  # the last key is a separator, too
                pending = []
        if pending:
            index.append((pending[-1][0], self.block(pending)))
        meta = self.block([])
        self.compress, self.interval = False, 1
        footer = meta + self.block(index)
        return self.out + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def write_bundle(prefix, arrays, files, block_size, interval, compress=False):
    data = [b"" for _ in range(files)]
    entries = {b"": field(1, files) + field(3, field(1, 1))}
    for number, (name, value) in enumerate(arrays.items()):
        kind, value = value if isinstance(value, tuple) else (str(value.dtype), value)
        raw = value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()
        shape = () if isinstance(value, bytes) else value.shape
        at = number * 7 % files
        message = field(1, TYPES[kind]) + field(2, b"".join(field(2, field(1, extent)) for extent in shape))
        message += (field(3, at) if at else b"") + (field(4, len(data[at])) if data[at] else b"") + field(5, len(raw)) + field(6, (masked_crc(raw),))
        entries[name.encode()] = message
        data[at] += raw
    for number, content in enumerate(data):
        Path(f"{prefix}.data-{number:05d}-of-{files:05d}").write_bytes(content)
    Path(f"{prefix}.index").write_bytes(Table(block_size, interval, compress).write(entries))


def check_tensorflow(binaries, work):
    sys.path.append(str(Path(__file__).resolve().parents[1] / "parity"))
    import bert_site as site
    import tf_names
    site.write_data(str(work), 4)
    config = {k: v for k, v in site.small_config(vocab_size=93).items() if k not in ("architectures", "model_type", "layer_norm_eps")}
    arrays = tf_names.bert_arrays(config, np.random.default_rng(5))
    weights = {name: value for name, value in arrays.items() if not name.endswith(("adam_m", "adam_v", "global_step"))}
    # Types in one checkpoint: half and bfloat16 weights, and strings and integers, which are not weights.
    arrays["bert/pooler/dense/bias"] = arrays["bert/pooler/dense/bias"].astype(np.float16)
    weights["bert/pooler/dense/bias"] = arrays["bert/pooler/dense/bias"].astype(np.float32)
    bits = arrays["cls/predictions/transform/dense/kernel"].view(np.uint32) >> 16
    arrays["cls/predictions/transform/dense/kernel"] = ("bfloat16", bits.astype(np.uint16))
    weights["cls/predictions/transform/dense/kernel"] = (bits << 16).astype(np.uint32).view(np.float32)
    arrays["bert/embeddings/LayerNorm/gamma"] = arrays["bert/embeddings/LayerNorm/gamma"].astype(np.float64)
    arrays["save_counter/.ATTRIBUTES/VARIABLE_VALUE"] = np.int64(1)
    arrays["_CHECKPOINTABLE_OBJECT_GRAPH"] = ("string", b"\x04abcd")
    (work / "run.yaml").write_text(f"""
model: {{path: tf-0/model.ckpt}}
data: {{train: packed, seq_length: {site.LENGTH}}}
batch: {{global_batch_size: 2, micro_batch_size: 1}}
optimizer: {{name: lamb, lr: 0.0}}
train: {{max_steps: 1, loss: token_mean}}
precision: {{compute: fp32}}
output: {{dir: run-0}}
""")
    for number, (files, block_size, interval) in enumerate([(1, 1 << 18, 16), (3, 300, 16), (5, 64, 3)]):
        folder = work / f"tf-{number}"
        folder.mkdir()
        (folder / "bert_config.json").write_text(json.dumps(config))
        write_bundle(folder / "model.ckpt", arrays, files, block_size, interval)
        run(binaries, "train_bert", "--config", work / "run.yaml", "--set", f"model.path={folder}/model.ckpt", "--set", f"output.dir={work}/run-{number}")
        written = load_file(work / f"run-{number}/model/model.safetensors")
        assert len(written) == len(weights), (len(written), len(weights))
        for name, value in weights.items():
            want = value.T if name.endswith("/kernel") else value
            assert np.array_equal(written[tf_names.hugging_face_name(name)], want), f"{files} files, blocks of {block_size}: {name}"
    compressed = work / "tf-compressed"
    compressed.mkdir()
    (compressed / "bert_config.json").write_text(json.dumps(config))
    write_bundle(compressed / "model.ckpt", arrays, 2, 300, 16, compress=True)
    run(binaries, "train_bert", "--config", work / "run.yaml", "--set", f"model.path={compressed}", "--set", "output.dir=never", code=4, says="snappy")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        check_nemo(args.bin, Path(work))
        check_tensorflow(args.bin, Path(work))
    print("ok")


if __name__ == "__main__":
    main()
