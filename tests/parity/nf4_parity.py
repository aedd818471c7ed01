#!/usr/bin/env python3
"""`trireme model quantize` against bitsandbytes on hostile matrices: codes and scales; transformers opens the model; what is not NF4
with double quantisation is refused by name. Exit code 77 = skipped.

usage: nf4_parity.py --bin DIRECTORY"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

try:
    import bitsandbytes.functional as bnb
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, LlamaConfig
except ImportError as error:
    print(f"SKIPPED: {error}; pip install bitsandbytes into the environment of TRIREME_PYTHON")
    sys.exit(77)

# [80, 48] is 60 blocks of 64; the keys' 12 x 48 and the 47 columns of the last MLP are no whole blocks.
SHAPE = dict(vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, max_position_embeddings=64)


def hostile(name, index, shape, generator):
    """Values of one matrix; `index` counts the matrices."""
    normal = torch.randn(shape, generator=generator)
    flat = normal.view(-1)
    book = bnb.get_4bit_type("nf4", device="cpu")
    middles = (book[:-1] + book[1:]) / 2
    kind = index % 7
    if kind == 1:  # whole blocks of zeros, negative zeros, and blocks of one value
        flat[:64] = 0
        flat[64:128] = -0.0
        flat[128:192] = -0.37
        flat[192:256] = 0
        flat[200] = 1e-3
    elif kind == 2:  # rows of very different size: 1e-30 to 1e30
        normal *= torch.logspace(-30, 30, shape[0])[:, None]
    elif kind == 3:  # denormal in fp32, also as the largest of a block
        normal *= 1e-38
        flat[:64] = 1e-42
    elif kind == 4:  # middles between codes, and their neighbours
        ties = torch.cat([middles, torch.nextafter(middles, torch.tensor(-2.0)), torch.nextafter(middles, torch.tensor(2.0))])
        flat[:] = torch.cat([torch.ones(1), ties, torch.zeros(64 - 1 - len(ties))]).repeat(-(-flat.numel() // 64))[:flat.numel()]
    elif kind == 5:  # one value is much larger than the others
        flat[::777] *= 1e4
    elif kind == 6:  # all scales equal: their differences from the mean are rounding
        normal.clamp_(-1, 1)
        flat[::16] = 1
    else:
        normal *= 0.02
    return normal


def exact_blockwise(values, code):
    """bitsandbytes' composition, which rounds as its CUDA kernel; its CPU library looks 8-bit codes up in a table."""
    op = torch.ops.bitsandbytes.quantize_blockwise.default
    return op._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, values, code, 256)


def compare(name, weight, ours, failures):
    codes, state = bnb.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    same = lambda what, a, b: failures.append(f"{name}: {what} differ in {(a != b).sum()} of {a.numel()}") if not torch.equal(a, b) else None
    same("codes", ours[name].view(-1), codes.view(-1))
    text = json.loads(bytes(ours[name + ".quant_state.bitsandbytes__nf4"].tolist()))
    theirs = state.as_dict(packed=False)
    for key in ("quant_type", "blocksize", "nested_blocksize", "dtype", "nested_dtype", "nested_offset"):
        if text[key] != theirs[key]:
            failures.append(f"{name}: {key} is {text[key]}, not {theirs[key]}")
    if text["shape"] != list(theirs["shape"]):
        failures.append(f"{name}: shape {text['shape']}")
    same("quant_map", ours[name + ".quant_map"], theirs["quant_map"])
    same("nested_quant_map", ours[name + ".nested_quant_map"], theirs["nested_quant_map"])
    same("nested_absmax", ours[name + ".nested_absmax"], theirs["nested_absmax"])
    # 8-bit codes: those of bitsandbytes' own rule; where its CPU library has others, they are neighbours on both sides of a middle.
    _, absmax = torch.ops.bitsandbytes.quantize_4bit(weight, 64, "nf4", torch.uint8)
    exact, _ = exact_blockwise(absmax - state.offset, theirs["nested_quant_map"])
    mine = ours[name + ".absmax"]
    scaled = (absmax - state.offset) / theirs["nested_absmax"].repeat_interleave(256)[:absmax.numel()]
    bounds = (theirs["nested_quant_map"][:-1] + theirs["nested_quant_map"][1:]) / 2
    for what, other, width in (("rule", exact, 1e-6), ("CPU library", theirs["absmax"], 2e-5)):
        different = (mine != other.view(-1)) & ~scaled.isnan()
        low = torch.minimum(mine, other.view(-1))[different].long()
        far = (scaled[different] - bounds[low.clamp(max=254)]).abs() > width
        # The table's step is 3e-5: codes near zero, of steps of 1e-6, are any of those within it.
        far &= ~((scaled[different].abs() < 4e-5) & (width > 1e-6))
        if far.any():
            failures.append(f"{name}: 8-bit codes differ from the {what}'s at {scaled[different][far][:4].tolist()}")
    return int((mine != theirs["absmax"].view(-1)).sum()), mine.numel()


def check_refusals(binary, model, work):
    """Each change of a model in NF4 is refused by name when a run starts on it."""
    tensors = load_file(f"{model}/model.safetensors")
    config = json.load(open(f"{model}/config.json"))
    name = "model.layers.1.self_attn.o_proj.weight"
    key = name + ".quant_state.bitsandbytes__nf4"
    np.save(f"{work}/train.npy", np.ones((4, 17), np.int32))
    open(f"{work}/run.yaml", "w").write("""
model: {path: changed}
lora: {r: 2}
data: {train: train.npy, seq_length: 17}
batch: {global_batch_size: 2}
train: {max_steps: 1}
precision: {compute: fp32, frozen: nf4}
output: {dir: run}
""")

    def state(changed, **values):
        text = {**json.loads(bytes(changed[key].tolist())), **values}
        changed[key] = torch.tensor(list(json.dumps({k: v for k, v in text.items() if v is not None}).encode()), dtype=torch.uint8)

    def to(suffix, value):
        return lambda changed: changed.update({name + suffix: value(changed[name + suffix])})

    def plain(changed):
        for other in [k for k in changed if k.startswith(name)]:
            del changed[other]
        changed[name] = torch.ones(64, 64)

    bnb_settings = lambda **values: dict(quantization_config={**config["quantization_config"], **values})
    cases = [
        (lambda changed: None, "", [], ["--dry-run"]),
        (lambda changed: changed.update({key.replace("nf4", "fp4"): changed.pop(key)}), "is stored in FP4", [], ["--dry-run"]),
        (lambda changed: state(changed, quant_type="fp4"), 'has quant_type "fp4"', [], ["--dry-run"]),
        (lambda changed: state(changed, blocksize=128), "blocksize 128", [], ["--dry-run"]),
        (lambda changed: state(changed, nested_blocksize=None, nested_offset=None), "double quantisation", [], ["--dry-run"]),
        (lambda changed: state(changed, nested_offset="0.1"), "double quantisation", [], ["--dry-run"]),
        (lambda changed: state(changed, shape=[32, 128]), "has shape [32, 128] in NF4", [], ["--dry-run"]),
        (lambda changed: state(changed, shape=[2**40, 2**40]), "without a shape", [], ["--dry-run"]),
        (lambda changed: changed.pop(name + ".absmax"), "without " + name + ".absmax", [], ["--dry-run"]),
        (to(".absmax", lambda x: x[:-1]), "has 63 elements of U8, not 64", [], ["--dry-run"]),
        (to(".nested_absmax", lambda x: x.half()), "elements of F16", [], ["--dry-run"]),
        (to("", lambda x: x.view(-1)[:-1]), "has 2047 elements", [], ["--dry-run"]),
        (to(".quant_map", lambda x: x * 0.5), "another quant_map", [], ["--dry-run"]),
        (to(".nested_quant_map", lambda x: x * 0.5), "another nested_quant_map", [], ["--dry-run"]),
        (to(".nested_absmax", lambda x: x * float("nan")), f"the scales of {name} in four bits are not finite", [], []),
        (plain, f"{name} is not: a model with some matrices in four bits", [], ["--dry-run"]),
        (lambda changed: None, "is stored in four bits (bitsandbytes)", ["precision.frozen=auto"], ["--dry-run"]),
        (lambda changed: config.update(bnb_settings(bnb_4bit_quant_type="fp4")), "quantization_config", [], ["--dry-run"]),
        (lambda changed: config.update(bnb_settings(bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=False)), "quantization_config", [], ["--dry-run"]),
        (lambda changed: config.update(bnb_settings(quant_method="gptq")), "quantization_config", [], ["--dry-run"]),
    ]
    os.makedirs(f"{work}/changed")
    for change, says, overrides, options in cases:
        changed = dict(tensors)
        change(changed)
        save_file({k: v.contiguous() for k, v in changed.items()}, f"{work}/changed/model.safetensors", metadata={"format": "pt"})
        json.dump(config, open(f"{work}/changed/config.json", "w"))
        sets = [argument for override in overrides for argument in ("--set", override)]
        done = subprocess.run([f"{binary}/train_llama", "--config", f"{work}/run.yaml", *sets, *options], capture_output=True, text=True)
        assert done.returncode == (4 if says else 0) and says in done.stderr, f"exit {done.returncode}, no '{says}' in\n{done.stderr}{done.stdout}"
        assert says or "has no use for" not in done.stderr, done.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    binary = parser.parse_args().bin
    tool = os.path.join(binary, "trireme")

    def quantize(model, output, code=0, says=""):
        done = subprocess.run([tool, "model", "quantize", "--model", model, "--output", output], capture_output=True, text=True)
        assert done.returncode == code and says in done.stderr, f"exit {done.returncode}, wanted {code} and '{says}':\n{done.stdout}{done.stderr}"

    torch.set_num_threads(1)
    failures, apart, scales = [], 0, 0
    with tempfile.TemporaryDirectory() as work:
        for dtype, width in ((torch.float32, 80), (torch.bfloat16, 80), (torch.float16, 80), (torch.float32, 47)):
            torch.manual_seed(7)
            generator = torch.Generator().manual_seed(5)
            model = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE, intermediate_size=width), dtype=torch.float32)
            base, output = f"{work}/base-{dtype}-{width}", f"{work}/nf4-{dtype}-{width}"
            with torch.no_grad():
                matrices = [n for n, p in model.named_parameters() if "layers" in n and p.dim() == 2]
                for index, name in enumerate(matrices):
                    values = hostile(name, index, model.get_parameter(name).shape, generator)
                    if dtype == torch.float16:
                        values = values.clamp(-6e4, 6e4)
                    model.get_parameter(name).copy_(values)
            model.to(dtype).save_pretrained(base)
            quantize(base, output)
            stored, ours = load_file(f"{base}/model.safetensors"), load_file(f"{output}/model.safetensors")
            for name in stored:
                if name not in matrices:
                    assert torch.equal(stored[name], ours[name]), name
            for name in matrices:
                different, count = compare(name, stored[name], ours, failures)
                apart, scales = apart + different, scales + count
            if width == 80:
                opened = AutoModelForCausalLM.from_pretrained(output, dtype=dtype, device_map="cpu")
                for name in matrices:
                    parameter = opened.get_parameter(name)
                    state = parameter.quant_state.as_dict(packed=True)
                    state.pop("quant_state.bitsandbytes__nf4")
                    if not torch.equal(parameter.data, ours[name]) or not all(torch.equal(state[key], ours[f"{name}.{key}"]) for key in state):
                        failures.append(f"{name}: transformers opens other codes or scales")

        # Weights that have no codes.
        tensors = load_file(f"{base}/model.safetensors")
        name = matrices[3]
        for bad, says in ((float("nan"), "holds a NaN or an infinity"), (float("-inf"), "holds a NaN or an infinity"), (3e38, "scales are infinite")):
            changed = {key: value.clone() for key, value in tensors.items()}
            changed[name].view(-1)[: (1 if bad != 3e38 else None)] = bad
            os.makedirs(f"{work}/bad", exist_ok=True)
            save_file(changed, f"{work}/bad/model.safetensors", metadata={"format": "pt"})
            open(f"{work}/bad/config.json", "w").write(open(f"{base}/config.json").read())
            quantize(f"{work}/bad", f"{work}/none", code=4, says=f"{name} in {work}/bad/model.safetensors {says}" if bad != 3e38 else says)
            assert not os.path.exists(f"{work}/none")
        quantize(output, f"{work}/none", code=4, says="is stored in four bits (bitsandbytes)")

        torch.manual_seed(1)
        AutoModelForCausalLM.from_config(LlamaConfig(**{**SHAPE, "hidden_size": 64}, intermediate_size=128), dtype=torch.float32).save_pretrained(f"{work}/whole")
        quantize(f"{work}/whole", f"{work}/codes")
        check_refusals(binary, f"{work}/codes", work)
    print(f"bitsandbytes' CPU library has the neighbour of {apart} of {scales} 8-bit codes")
    sys.exit("\n".join(failures[:20]) or 0)


if __name__ == "__main__":
    main()
