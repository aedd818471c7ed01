#!/usr/bin/env python3
"""Ten steps of train_bert against transformers' BertForPreTraining / BertForMaskedLM and a NumPy LAMB: losses, gradient norms, every gradient,
final weights, evaluation; the same packed rows, unpacked for transformers. Exit code 77 = skipped."""
import argparse
import json
import subprocess
import sys
import tempfile

from needed import needed

with needed():
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from transformers.trainer_pt_utils import LabelSmoother

import bert_site as site

STEPS, GBS = 10, 4


def batch_of(sequences):
    longest = max(len(s["ids"]) for s in sequences)
    ids, types, mask = (torch.zeros(len(sequences), longest, dtype=torch.long) for _ in range(3))
    labels = torch.full((len(sequences), longest), -100)
    for row, s in enumerate(sequences):
        n = len(s["ids"])
        ids[row, :n], types[row, :n], mask[row, :n] = torch.tensor(s["ids"]), torch.tensor(s["types"]), 1
        labels[row, torch.tensor(s["masked"])] = torch.tensor(s["true"])
    return ids, types, mask, labels, torch.tensor([s["label"] for s in sequences])


def forward(model, sequences, smoothing=0):
    """Loss (mean over masked words, plus mean over sequences) and how many masked words are found."""
    ids, types, mask, labels, follows = batch_of(sequences)
    extra = dict(next_sentence_label=follows) if isinstance(model, transformers.BertForPreTraining) else {}
    out = model(input_ids=ids, token_type_ids=types, attention_mask=mask, labels=labels, **extra)
    logits = out.prediction_logits if extra else out.logits
    loss = LabelSmoother(smoothing)(out, labels) if smoothing else out.loss
    return loss, (logits.argmax(-1) == labels).sum().item(), (labels != -100).sum().item()


def close(name, got, want, tolerance, failures):
    error = abs(got - want) / abs(want)
    if not error <= tolerance:
        failures.append(f"{name}: {got!r} against {want!r}, error {error:.3g} > {tolerance}")
    return error


def named(model):
    return {name: value for name, value in model.named_parameters()}  # a tied decoder is listed once


def train(args, work, out, overrides):
    command = [args.train_bert, "--config", f"{work}/run.yaml", "--set", f"output.dir={out}"]
    for override in overrides:
        command += ["--set", override]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"train_bert ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
    return [json.loads(line) for line in open(f"{work}/{out}/metrics.jsonl")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-bert", required=True)
    parser.add_argument("--case", required=True, choices=["pretraining", "masked-lm"])
    parser.add_argument("--label-smoothing", type=float, default=0, help="masked-lm")
    args = parser.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    failures = []
    pretraining = args.case == "pretraining"
    act = "gelu" if pretraining else "gelu_new"
    with tempfile.TemporaryDirectory() as work:
        kind = transformers.BertForPreTraining if pretraining else transformers.BertForMaskedLM
        config = transformers.BertConfig(**{k: v for k, v in site.small_config(hidden_act=act, pad_token_id=4).items() if k not in ("architectures", "model_type")})
        model = kind(config).float().eval()
        with torch.no_grad():
            for name, value in model.named_parameters():
                if value.dim() == 1:  # zeros and ones would hide errors
                    value.add_(torch.randn_like(value) * 0.05)
        model.save_pretrained(f"{work}/base", safe_serialization=True)
        packs, sequences = site.write_data(work, STEPS * GBS)
        lr, decay, clip, betas, eps = 2e-3, 0.1, 1.0, (0.60466, 0.85437), 1e-6
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""
model: {{path: base, pad_vocab_to: 1}}
data: {{train: packed, valid: eval.hdf5, seq_length: {site.LENGTH}, shuffle: false}}
batch: {{global_batch_size: {GBS}, micro_batch_size: 2}}
optimizer: {{name: lamb, lr: {lr}, betas: [{betas[0]}, {betas[1]}], eps: {eps}, weight_decay: {decay}, grad_clip: {clip}}}
schedule: {{name: linear}}
train: {{max_steps: {STEPS}, loss: token_mean, label_smoothing: {args.label_smoothing}}}
precision: {{compute: fp32}}
output: {{dir: run}}
""")

        # Every gradient of the first step: with eps far above |g|, Adam without memory is plain descent by lr / eps = 100.
        first = [s for p in packs[:GBS] for s in p]
        loss, _, _ = forward(model, first, args.label_smoothing)
        model.zero_grad()
        loss.backward()
        before = {name: value.detach().clone() for name, value in named(model).items()}
        gradients = {name: value.grad.clone() for name, value in named(model).items()}
        train(args, work, "gradients", ["optimizer.name=adamw", "optimizer.lr=1.0e+8", "optimizer.eps=1.0e+6", "optimizer.betas=[0, 0]",
                                        "optimizer.weight_decay=0", "optimizer.grad_clip=0", "schedule.name=constant", "train.max_steps=1"])
        after = load_file(f"{work}/gradients/model/model.safetensors")
        worst_gradient, whole = 0.0, sum((g.double() ** 2).sum() for g in gradients.values()).sqrt().item()
        for name, gradient in gradients.items():
            got = (before[name].double() - after[name].double()) / 100
            # A key's bias does not change the softmax: its gradient is only rounding, so no relative error is defined.
            error = (got - gradient).norm().item() / max(gradient.norm().item(), 1e-4 * whole)
            worst_gradient = max(worst_gradient, error)
            if not error <= 1e-4:
                failures.append(f"gradient of {name}: relative error {error:.3g}")

        lamb = site.Lamb({n: v.numpy() for n, v in before.items()}, {n: v.dim() == 2 for n, v in before.items()}, betas, eps, decay, clip)
        want = []
        for step in range(STEPS):
            rows = [s for p in packs[step * GBS:(step + 1) * GBS] for s in p]
            loss, _, _ = forward(model, rows, args.label_smoothing)
            model.zero_grad()
            loss.backward()
            rate = lr * (1 - step / STEPS)
            norm = lamb.step({name: value.grad.numpy() for name, value in named(model).items()}, rate)
            want.append((loss.item(), norm, rate, len(rows)))
            with torch.no_grad():
                for name, value in named(model).items():
                    value.copy_(torch.from_numpy(lamb.w[name]))
        with torch.no_grad():
            eval_loss, hits, words = forward(model, sequences)

        lines = train(args, work, "run", [])
        base, ours = (json.load(open(f"{work}/{folder}/config.json")) for folder in ("base", "run/model"))
        if lost := base.keys() - ours.keys() - {"dtype"}:
            failures.append(f"config.json of the result lacks {lost}")
        steps = [line for line in lines if line["event"] == "train"]
        assert len(steps) == STEPS, f"{len(steps)} train lines"
        samples, worst = 0, 0.0
        for line, (loss, norm, rate, count) in zip(steps, want):
            samples += count
            worst = max(worst, close(f"step {line['step']} loss", line["loss"], loss, 1e-5, failures))
            close(f"step {line['step']} grad_norm", line["grad_norm"], norm, 1e-4, failures)
            close(f"step {line['step']} lr", line["lr"], rate, 1e-12, failures)
            if line["samples"] != samples:
                failures.append(f"step {line['step']}: {line['samples']} samples, {samples} sequences were trained")
        ours = [line for line in lines if line["event"] == "eval"][-1]
        close("eval loss", ours["loss"], eval_loss.item(), 1e-5, failures)
        if ours["mlm_accuracy"] != hits / words:
            failures.append(f"accuracy {ours['mlm_accuracy']}, transformers {hits} of {words}")

        loaded = kind.from_pretrained(f"{work}/run/model", dtype=torch.float32).eval()
        theirs, mine = named(model), named(loaded)
        weight_error = max((mine[name] - value).abs().max().item() for name, value in theirs.items())
        if not weight_error <= 1e-4:
            failures.append(f"weights differ by {weight_error:.3g}")
        with torch.no_grad():
            again, _, _ = forward(loaded, sequences)
        close("loss of the written directory", again.item(), eval_loss.item(), 1e-4, failures)
        # Names may lack the prefix; copies of tied tensors that differ are two tensors to transformers; BertModel has no heads.
        stored = load_file(f"{work}/base/model.safetensors")
        save_file({name.removeprefix("bert."): value for name, value in stored.items()}, f"{work}/base/model.safetensors")
        again = train(args, work, "bare", ["train.max_steps=1"])
        if [line["loss"] for line in again if line["event"] == "train"] != [steps[0]["loss"]]:
            failures.append("files without the prefix bert. have another loss")
        for tensors, says in ((stored | {"cls.predictions.decoder.bias": stored["cls.predictions.bias"] + 1}, "cls.predictions.decoder.bias differs from cls.predictions.bias"),
                              (stored | {"bert.embeddings.LayerNorm.gamma": stored["bert.embeddings.LayerNorm.weight"] + 1}, "LayerNorm.gamma differs from bert.embeddings.LayerNorm.weight"),
                              ({name: value for name, value in stored.items() if not name.startswith("cls.")}, "has no heads for pre-training (cls.*)")):
            save_file(tensors, f"{work}/base/model.safetensors")
            done = subprocess.run([args.train_bert, "--config", f"{work}/run.yaml", "--set", "output.dir=two"], capture_output=True, text=True)
            if done.returncode != 4 or says not in done.stderr:
                failures.append(f"{says}: {done.returncode}: {done.stderr[-500:]}")
        print(f"{args.case}: worst loss error {worst:.2e}, worst gradient {worst_gradient:.2e} relative, weights {weight_error:.2e}, "
              f"loss {want[0][0]:.4f} -> {want[-1][0]:.4f}, accuracy {hits / words:.3f}")
    sys.exit("\n".join(failures[:20]) or 0)


if __name__ == "__main__":
    main()
