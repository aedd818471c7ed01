#!/usr/bin/env python3
"""train_bert starts from a BERT checkpoint that TensorFlow wrote (TF1 saver format, with optimizer slots). The model of a run with learning
rate 0 must have its weights, with kernels transposed. Exit code 77 = skipped.

--fixture DIRECTORY writes the small checkpoint of tests/formats/fixtures_tensorflow instead."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

# The path of TensorFlow if it is not an installed package (it is too large to install for one test).
if os.environ.get("TRIREME_TENSORFLOW"):
    sys.path.append(os.environ["TRIREME_TENSORFLOW"])
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
try:
    import numpy as np
    import tensorflow as tf
except ImportError as error:
    print(f"SKIPPED: {error}; pip install tensorflow-cpu --target DIR and TRIREME_TENSORFLOW=DIR run this test")
    sys.exit(77)


def save(prefix, arrays, step):
    graph = tf.Graph()
    with graph.as_default():
        variables = [tf.compat.v1.get_variable(name, initializer=tf.constant(value)) for name, value in arrays.items()]
        saver = tf.compat.v1.train.Saver(variables, write_version=tf.compat.v1.train.SaverDef.V2)
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            return saver.save(session, prefix, global_step=step, write_meta_graph=False, write_state=False)


def fixture(directory):
    arrays = {"bert/pooler/dense/kernel": (0.5 * np.arange(15, dtype=np.float32) - 3).reshape(3, 5),
              "bert/pooler/dense/kernel/adam_m": np.ones((3, 5), np.float32), "global_step": np.int64(28252)}
    for layer in range(150):
        arrays[f"bert/encoder/layer_{layer}/attention/self/query/bias"] = np.full(2, layer, np.float32)
    os.makedirs(directory, exist_ok=True)
    print(save(f"{directory}/model.ckpt", arrays, 3))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-bert")
    parser.add_argument("--fixture")
    args = parser.parse_args()
    if args.fixture:
        return fixture(args.fixture)
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "parity"))
    import bert_site as site
    import tf_names
    from safetensors.numpy import load_file
    with tempfile.TemporaryDirectory() as work:
        site.write_data(work, 4)
        config = {k: v for k, v in site.small_config(vocab_size=93).items() if k not in ("architectures", "model_type", "layer_norm_eps")}
        os.makedirs(f"{work}/phase1")
        json.dump(config, open(f"{work}/phase1/bert_config.json", "w"))
        arrays = tf_names.bert_arrays(config, np.random.default_rng(5))
        prefix = save(f"{work}/phase1/model.ckpt", arrays, 28252)
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""
model: {{path: phase1/{os.path.basename(prefix)}}}
data: {{train: packed, seq_length: {site.LENGTH}}}
batch: {{global_batch_size: 2, micro_batch_size: 1}}
optimizer: {{name: lamb, lr: 0.0}}
train: {{max_steps: 1, loss: token_mean}}
precision: {{compute: fp32}}
output: {{dir: run}}
""")
        for path in (prefix, f"{work}/phase1", prefix + ".index"):
            out = f"run-{pathlib.Path(path).suffix or pathlib.Path(path).name}"
            done = subprocess.run([args.train_bert, "--config", f"{work}/run.yaml", "--set", f"model.path={path}", "--set", f"output.dir={out}"],
                                  capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
            assert "GELU by tanh" in done.stdout + done.stderr, "TensorFlow's gelu is the tanh form"
            written = load_file(f"{work}/{out}/model/model.safetensors")
            theirs = {name: value for name, value in arrays.items() if not name.endswith(("adam_m", "adam_v", "global_step"))}
            assert len(written) == len(theirs), (len(written), len(theirs))
            for name, value in theirs.items():
                want = value.T if name.endswith("/kernel") else value
                assert np.array_equal(written[tf_names.hugging_face_name(name)], want), name
        data = f"{prefix}.data-00000-of-00001"
        content = bytearray(open(data, "rb").read())
        place = content.find(arrays["bert/pooler/dense/kernel"].tobytes())
        content[place + 9] ^= 1
        open(data, "wb").write(content)
        done = subprocess.run([args.train_bert, "--config", f"{work}/run.yaml", "--set", "output.dir=damaged"], capture_output=True, text=True)
        assert done.returncode == 4 and "bert/pooler/dense/kernel" in done.stderr and "checksum" in done.stderr, (done.returncode, done.stderr)
        print(f"{len(theirs)} tensors of TensorFlow {tf.__version__} read back equal, {len(arrays) - len(theirs)} slots passed over")


if __name__ == "__main__":
    main()
