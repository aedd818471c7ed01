#!/usr/bin/env python3
"""Ten steps of train_gpt against a plain PyTorch loop over transformers' GPT2LMHeadModel, with NeMo's optimizer and schedule: losses, gradient
norms, learning rates, final weights, and the model that it leaves, opened by transformers. Exit code 77 = skipped."""
import argparse
import copy
import json
import math
import os
import subprocess
import tempfile

from needed import needed

with needed():
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config

    from pretrain_loop import pretrain

VOCAB, PADDED, SEQ, STEPS, GBS, MBS = 113, 128, 33, 10, 8, 2
LR, LEAST, WARMUP, CONSTANT, DECAY, CLIP = 3e-3, 3e-4, 2, 3, 0.1, 1.0
# Tolerances, relative: of losses, of gradient norms; absolute: of weights. bf16 rounds the products of both programs differently.
CASES = {"fp32": (1e-5, 1e-4, 1e-4), "bf16": (2e-3, 1e-2, 8e-3)}


def rate_of(step):
    """NeMo's CosineAnnealing with constant steps."""
    decay = STEPS - CONSTANT - WARMUP
    if step <= WARMUP:
        return LR * step / WARMUP
    if step > WARMUP + decay:
        return LEAST
    return LEAST + 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / decay)) * (LR - LEAST)


def write_rows(path, rows, seed):
    data = np.random.default_rng(seed).integers(0, VOCAB, size=(rows, SEQ)).astype(np.int32)
    data[:, 1::2] = data[:, 0:-1:2]
    np.save(path, data)
    return torch.from_numpy(data.astype(np.int64))


def reference(start, data, valid, case):
    rates = [rate_of(step) for step in range(STEPS)]
    history, masters, model = pretrain(start, data.split(GBS), rates, compute=torch.bfloat16 if case == "bf16" else torch.float32, micro=MBS,
                                       clip=CLIP, decay=DECAY)
    with torch.no_grad():
        evaluation = model(input_ids=valid, labels=valid).loss.item()
    return [(loss, norm, rate) for (loss, norm), rate in zip(history, rates)], masters, evaluation


def train(args, work, case):
    with open(f"{work}/run.yaml", "w") as out:
        out.write(f"""model: {{path: base}}
data: {{train: train.npy, valid: valid.npy, seq_length: {SEQ}, shuffle: false}}
batch: {{global_batch_size: {GBS}, micro_batch_size: {MBS}}}
optimizer: {{lr: {LR}}}
schedule: {{name: cosine, warmup_steps: {WARMUP}, constant_steps: {CONSTANT}, min_lr: {LEAST}}}
train: {{max_steps: {STEPS}}}
precision: {{compute: {case}}}
output: {{dir: run}}
""")
    done = subprocess.run([args.train_gpt, "--config", f"{work}/run.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, f"train_gpt ended with {done.returncode}: {done.stdout[-3000:]} {done.stderr[-3000:]}"
    return [json.loads(line) for line in open(f"{work}/run/metrics.jsonl")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-gpt", required=True)
    parser.add_argument("--case", required=True, choices=CASES)
    args = parser.parse_args()
    loss_bound, norm_bound, weight_bound = CASES[args.case]
    torch.manual_seed(11)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        config = GPT2Config(vocab_size=PADDED, n_embd=48, n_layer=3, n_head=4, n_inner=192, n_positions=SEQ, embd_pdrop=0.0, attn_pdrop=0.0,
                            resid_pdrop=0.0, initializer_range=0.2, bos_token_id=VOCAB - 1, eos_token_id=VOCAB - 1)
        start = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
        start.save_pretrained(f"{work}/base", safe_serialization=True)
        data, valid = write_rows(f"{work}/train.npy", STEPS * GBS, 1), write_rows(f"{work}/valid.npy", 6, 2)
        want, masters, evaluation = reference(start, data, valid, args.case)
        assert max(norm for _, norm, _ in want) > CLIP, "the clipping is part of the test"
        lines = train(args, work, args.case)
        steps = [line for line in lines if line["event"] == "train"]
        assert len(steps) == STEPS
        worst = [0.0, 0.0]
        for line, (loss, norm, rate) in zip(steps, want):
            assert math.isclose(line["lr"], rate, rel_tol=1e-12), line
            worst = [max(worst[0], abs(line["loss"] / loss - 1)), max(worst[1], abs(line["grad_norm"] / norm - 1))]
        ours = [line for line in lines if line["event"] == "eval"][-1]["loss"]
        loaded, info = AutoModelForCausalLM.from_pretrained(f"{work}/run/model", dtype=torch.float32, output_loading_info=True)
        assert not any(info.values()), info
        theirs, mine = dict(masters.named_parameters()), dict(loaded.eval().named_parameters())
        assert theirs.keys() == mine.keys() and mine["transformer.wte.weight"].shape[0] == PADDED
        difference = {name: (mine[name] - value).abs() for name, value in theirs.items()}
        for name, error in difference.items():
            if name.endswith("attn.c_attn.bias"):  # a key's bias moves all scores of a query alike: its gradient is rounding, which Adam scales up
                error[48:96] = 0
        difference = {name: error.max().item() for name, error in difference.items()}
        with torch.no_grad():
            logits = loaded(input_ids=valid).logits
            opened = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, PADDED), valid[:, 1:].reshape(-1)).item()
            logit_difference = (logits - masters(input_ids=valid).logits).abs().max().item()
        print(f"{args.case}: losses {worst[0]:.1e}, gradient norms {worst[1]:.1e}, weights {max(difference.values()):.1e}, logits {logit_difference:.1e}, "
              f"loss {want[0][0]:.4f} -> {want[-1][0]:.4f}")
        assert worst[0] < loss_bound and worst[1] < norm_bound, worst
        assert abs(ours / evaluation - 1) < loss_bound and abs(ours / opened - 1) < max(1e-6, loss_bound / 10), (ours, evaluation, opened)
        assert max(difference.values()) < weight_bound, {name: value for name, value in difference.items() if value >= weight_bound}
        if args.case == "fp32":
            check_padding(args, work, config, start)


def check_padding(args, work, config, start):
    """A model of VOCAB rows is filled up to a multiple of 128; what is left opens with all rows, and its own have learned as without the others."""
    cut = copy.deepcopy(start)
    cut.resize_token_embeddings(VOCAB)
    cut.save_pretrained(f"{work}/base", safe_serialization=True)
    assert json.load(open(f"{work}/base/config.json"))["vocab_size"] == VOCAB
    os.rename(f"{work}/run", f"{work}/first")
    train(args, work, "fp32")
    loaded = AutoModelForCausalLM.from_pretrained(f"{work}/run/model", dtype=torch.float32)
    assert loaded.config.vocab_size == PADDED and loaded.get_input_embeddings().weight.shape[0] == PADDED
    assert loaded.config.activation_function == "gelu_new" and loaded.lm_head.weight.data_ptr() == loaded.transformer.wte.weight.data_ptr()
    rows = loaded.get_input_embeddings().weight.detach()
    # The logits of padding rows are part of the softmax, as in Megatron: training lowers them. All start at the same mean of the others.
    spread = (rows[VOCAB:] - rows[VOCAB:].mean(0)).abs().max().item()
    mean = (rows[VOCAB:].mean(0) - start.get_input_embeddings().weight[:VOCAB].mean(0)).abs().max().item()
    assert spread < 1e-2 and 1e-4 < mean, (spread, mean)


if __name__ == "__main__":
    main()
