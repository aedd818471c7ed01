#!/usr/bin/env python3
"""Sets `trireme simulate` beside the measured training rows of docs/results/training.json.

  scripts/bench/simulated.py [--bin build/release/bin] [--published]

Reads the model's shape, batch and settings from each row's command and prints the table of docs/howto/simulate.md: measured and predicted, per
GPU. Rows whose command is of another script are not there. --published: beside the scaling that others published for H100."""
import argparse
import json
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# hidden, FFN, layers, heads, key-value heads, vocabulary: as in llama_lora.sh; layers, hidden, heads: as in gpt.sh.
LLAMA = {"7b": (4096, 11008, 32, 32, 32, 32000), "13b": (5120, 13824, 40, 40, 40, 32000), "70b": (8192, 28672, 80, 64, 8, 32000),
         "34b": (8192, 22016, 48, 64, 8, 32000), "8b": (4096, 14336, 32, 32, 8, 128256), "qwen14b": (5120, 13824, 48, 40, 8, 152064)}
GPT = {"126m": (12, 768, 12), "5b": (24, 4096, 32)}


def llama_config(shape):
    hidden, ffn, layers, heads, kv, vocab = LLAMA[shape]
    family = dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2") if shape.startswith("qwen") else dict(architectures=["LlamaForCausalLM"], model_type="llama")
    return dict(**family, hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers,
                num_attention_heads=heads, num_key_value_heads=kv, vocab_size=vocab, max_position_embeddings=8192, rms_norm_eps=1e-5, hidden_act="silu",
                tie_word_embeddings=False, initializer_range=0.02)


def gpt_config(size):
    layers, hidden, heads = GPT[size]
    return dict(architectures=["GPT2LMHeadModel"], model_type="gpt2", n_embd=hidden, n_layer=layers, n_head=heads, n_inner=4 * hidden, n_positions=2048,
                vocab_size=50257, activation_function="gelu_new", layer_norm_epsilon=1e-5, initializer_range=0.02, embd_pdrop=0.1, attn_pdrop=0.1,
                resid_pdrop=0.1, torch_dtype="bfloat16")


def bert_config():
    return dict(architectures=["BertForPreTraining"], model_type="bert", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
                vocab_size=30522, max_position_embeddings=512, type_vocab_size=2, layer_norm_eps=1e-12, hidden_act="gelu_new", initializer_range=0.02)


def case_of(command):
    """(program, config.json, overrides, GPUs) of a row's command; None: not one of these scripts."""
    words = shlex.split(command)
    environment = dict(word.split("=", 1) for word in words if "=" in word and word[0].isupper() and not word.startswith("--"))
    words = [word for word in words if word not in [f"{k}={v}" for k, v in environment.items()]]
    settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    options = ("--set", "--device-memory-gib")
    name, *arguments = [word for i, word in enumerate(words) if word not in options and (i == 0 or words[i - 1] not in options)]
    lora = ["lora.r=16", "lora.alpha=32", "lora.dropout=0.1", "lora.target_modules=[q_proj,k_proj,v_proj,o_proj]"]
    mlperf = [*lora, "lora.target_modules=[qkv_proj,o_proj]"]
    seven = [*lora, "lora.target_modules=[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]"]
    if name.endswith("/llama_lora.sh"):
        shape, seq, micro, batch, _, *rest = arguments
        base = [] if "lora=null" in settings else lora
        settings = [s for s in settings if s != "lora=null"]
        gpus = int(rest[0]) if rest else 1
        return "train_llama", llama_config(shape), [f"data.seq_length={seq}", f"batch.global_batch_size={batch}", f"batch.micro_batch_size={micro}", *base, *settings], gpus
    if name.endswith("/llama70b_lora.sh"):
        gpus, row = int(arguments[0]), arguments[1]
        if row == "communication":
            return None
        if row == "7b":
            return "train_llama", llama_config("7b"), ["data.seq_length=4096", "batch.global_batch_size=1", "batch.micro_batch_size=1", *seven, "parallel.recompute=none"], gpus
        micro = 8 if row == "bf16-2048" else 1
        batch = 8 * int(environment.get("ACCUMULATION", 4)) * gpus if row == "bf16-2048" else 8 if gpus > 1 else 1
        targets = [*seven, "lora.r=8", "lora.alpha=16"] if row == "bf16-2048" else mlperf
        fp8 = ["precision.linear=fp8"] if row == "fp8-8192" else []
        return "train_llama", llama_config("70b"), [f"data.seq_length={row.split('-')[1]}", f"batch.global_batch_size={batch}", f"batch.micro_batch_size={micro}", *targets, *fp8], gpus
    if name.endswith("/gpt.sh"):
        size, micro, batch, _, *rest = arguments
        return "train_gpt", gpt_config(size), ["data.seq_length=2048", f"batch.global_batch_size={batch}", f"batch.micro_batch_size={micro}", *settings], int(rest[0]) if rest else 1
    if name.endswith("/bert.sh") and arguments[0] == "large":
        gpus, rows = int(arguments[2]), int(arguments[3])
        return "train_bert", bert_config(), ["data.seq_length=512", f"batch.global_batch_size={rows * gpus}", f"batch.micro_batch_size={rows}", "batch.packing_rate=2",
                                             "optimizer.name=lamb", *settings], gpus
    return None


SEVEN = "lora.target_modules=[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]"
FMS = ["data.seq_length=4096", "batch.global_batch_size=192", "batch.micro_batch_size=2", "parallel.reduce_dtype=compute"]
# Name, shape, settings, options, {GPUs: published tokens/s/GPU}. Settings are theirs as far as there are any here.
PUBLISHED = [
    ("Llama2-70B LoRA, dgxc-benchmarking (Hugging Face recipe)", "70b",
     ["data.seq_length=2048", "batch.global_batch_size=256", "batch.micro_batch_size=8", "lora.r=8", "lora.alpha=16", "lora.dropout=0.1", SEVEN,
      "parallel.shard_size=world", "parallel.recompute=full"],
     ["--weak", "--policy", "auto"], {8: 319.2, 16: 469.0, 32: 603.6, 64: 701.0, 128: 757.5, 256: 762.7, 512: 619.7}),
    ("Llama3-8B, torchtitan, compiled", "8b", ["data.seq_length=8192", "batch.global_batch_size=16", "batch.micro_batch_size=2", "parallel.shard_size=world"],
     ["--weak", "--policy", "full", "--memory-gib", "94"], {8: 6667, 128: 6514}),
    ("Llama3-8B, torchtitan, compiled, float8", "8b",
     ["data.seq_length=8192", "batch.global_batch_size=16", "batch.micro_batch_size=2", "parallel.shard_size=world", "precision.linear=fp8", "precision.fp8_recipe=tensorwise"],
     ["--weak", "--policy", "full", "--memory-gib", "94"], {8: 8532, 128: 8380}),
    ("Llama2-7B, fms-fsdp, HSDP", "7b", [*FMS, "parallel.shard_size=8"], ["--policy", "full", "--link-gb-s", "12.5"], {96: 9600}),
    ("Llama2-13B, fms-fsdp, FSDP", "13b", [*FMS, "parallel.shard_size=world"], ["--policy", "full", "--link-gb-s", "12.5"], {96: 4850}),
    ("Llama2-34B, fms-fsdp, FSDP", "34b", [*FMS, "parallel.shard_size=world"], ["--policy", "full", "--link-gb-s", "12.5"], {96: 1830}),
    ("Llama2-70B, fms-fsdp, FSDP", "70b", [*FMS, "parallel.shard_size=world"], ["--policy", "full", "--link-gb-s", "12.5"], {96: 890}),
]


def simulate(binaries, program, model, overrides, gpus, *options):
    """What --output writes; `gpus`: "8,16"."""
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "config.json").write_text(json.dumps(model))
        (Path(work) / "run.yaml").write_text("model: {path: ., init: random}\ndata: {train: none.npy}\noutput: {dir: run}\n")
        command = [f"{binaries}/trireme", "simulate", "--config", f"{work}/run.yaml", "--trainer", program, "--gpus", str(gpus), "--output", f"{work}/out.json", *options]
        for setting in overrides:
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{shlex.join(command)}\n{done.stderr}")
        return json.loads((Path(work) / "out.json").read_text())


def published(binaries):
    print("| work | H100s | published | of its first | predicted | of its first | shard group | not hidden, ms | step, ms |\n|---|---|---|---|---|---|---|---|---|")
    for name, shape, overrides, options, figures in PUBLISHED:
        found = simulate(binaries, "train_llama", llama_config(shape), overrides, ",".join(map(str, figures)), "--gpu", "H100", *options)
        first = next(iter(figures.values()))
        for row, (gpus, figure) in zip(found["rows"], figures.items()):
            if not row["fits"]:
                print(f"| {name} | {gpus} | {figure:,.0f} | {figure / first:.3f} | does not fit: {row['memory_gib']:.1f} GiB | | {row['shard_size']} | | |")
                continue
            print(f"| {name} | {gpus} | {figure:,.0f} | {figure / first:.3f} | {row['tokens_per_s_per_gpu']:,.0f} | {row['efficiency']:.3f} | {row['shard_size']} | "
                  f"{row['exposed_communication_ms']:.1f} | {row['step_ms']:.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=ROOT / "build/release/bin")
    parser.add_argument("--published", action="store_true")
    args = parser.parse_args()
    if args.published:
        return published(args.bin)
    print("| work | GPUs | measured | predicted | predicted / measured |\n|---|---|---|---|---|")
    for row in json.loads((ROOT / "docs/results/training.json").read_text())["rows"]:
        case = case_of(row["command"])
        if case is None:
            continue
        program, model, overrides, gpus = case
        _, limited, memory = row["command"].partition(" --device-memory-gib ")
        limit = ["--memory-gib", memory.split()[0]] if limited else []
        found = simulate(args.bin, program, model, overrides, gpus, "--policy", "auto", *limit)
        predicted = found["rows"][0].get("tokens_per_s_per_gpu", 0)
        if row["unit"] != "tokens/s":
            predicted /= found["seq_length"] / (2 if program == "train_bert" else 1)  # two sequences a row
        shape = re.sub(rf"^{gpus}( GPUs)?(, |$)", "", row.get("shape", ""))  # the column has the GPUs
        shape = f", {shape}" if shape else ""
        digits = ".4f" if row["unit"] == "samples/s" else ",.0f"
        print(f"| {row['name']}{shape} | {gpus} | {row['ours']:{digits}} {row['unit']} | {predicted:{digits}} | {predicted / row['ours']:.3f} |")


if __name__ == "__main__":
    main()
