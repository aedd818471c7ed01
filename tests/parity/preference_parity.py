#!/usr/bin/env python3
"""train_llama with train.objective dpo, orpo and kto against TRL's DPOTrainer, ORPOTrainer and KTOTrainer: raw pairs to rows, then ten steps on the same weights:
losses, gradient norms, TRL's metrics, evaluations, final weights, and every gradient of one step. Exit code 77 = skipped.

usage: preference_parity.py --bin DIRECTORY [--case NAME]"""
import argparse
import copy
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from needed import needed

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1", TRL_EXPERIMENTAL_SILENCE="1")
warnings.filterwarnings("ignore")
with needed():
    import datasets
    import h5py
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from tokenizers import AddedToken
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, PrinterCallback, Qwen2Config
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

sys.path.insert(0, str(Path(__file__).parent.parent / "tokenizer"))
import byte_level  # noqa: E402

datasets.disable_progress_bars()
logging.disable(logging.WARNING)
STEPS, PAIRS, GBS, LENGTH = 10, 24, 4, 48
LR, CLIP = 2e-3, 0.5
# Ends with EOS, which ORPOTrainer would add otherwise.
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
WORDS = "a list of words that make texts of a few tokens: red blue one two sun moon yes no why how it is not here there".split()

WEIGHTS = dict(desirable_weight=1.3, undesirable_weight=0.6, beta=0.3)
# name: objective, lora (None, new, adapter), keys of section preference, TRL's keys, further keys of ours
CASES = {
    "dpo-lora": ("dpo", "new", {}, {}, {}),
    "dpo-adapter-ipo": ("dpo", "adapter", dict(loss_type="ipo", beta=0.3), dict(loss_type="ipo", beta=0.3), {}),
    "dpo-adapter-precomputed": ("dpo", "adapter", dict(precompute_ref_log_probs="true"), {}, {}),
    "dpo-dora": ("dpo", "new", {}, {}, {"lora.use_dora": "true", "lora.rank_pattern": "{q_proj: 2}"}),
    "dpo-tokens": ("dpo", "new", {}, {}, {"lora.trainable_token_indices": "[7, 9, 40]", "lora.use_rslora": "true"}),
    "dpo-saved": ("dpo", "new", {}, {}, {"lora.modules_to_save": "[lm_head]"}),
    "dpo-full": ("dpo", None, {}, {}, {}),
    "dpo-full-hinge-tied": ("dpo", None, dict(loss_type="hinge", beta=0.5), dict(loss_type="hinge", beta=0.5), {}),
    "dpo-full-robust-accumulated": ("dpo", None, dict(loss_type="robust", label_smoothing=0.1), dict(loss_type="robust", label_smoothing=0.1), {"batch.micro_batch_size": 1}),
    "dpo-full-sft": ("dpo", None, dict(rpo_alpha=0.7), dict(loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.7]), {}),
    "dpo-packed": ("dpo", "new", dict(rpo_alpha=0.2), dict(loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.2]), {}),
    "orpo-lora": ("orpo", "new", dict(beta=0.2), dict(beta=0.2), {}),
    "orpo-full": ("orpo", None, {}, {}, {}),
    "orpo-packed": ("orpo", None, {}, {}, {}),
    "kto-lora": ("kto", "new", {}, {}, {}),
    "kto-adapter-weights": ("kto", "adapter", WEIGHTS, WEIGHTS, {}),
    "kto-full": ("kto", None, {}, {}, {"batch.micro_batch_size": 1}),
    "kto-full-apo": ("kto", None, dict(loss_type="apo_zero_unpaired"), dict(loss_type="apo_zero_unpaired"), {}),
}


def write_tokenizer(folder):
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = byte_level.train("qwen2", [" ".join(WORDS)] * 4, 300)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in specials])
    tokenizer.save(f"{folder}/tokenizer.json")
    names = {"bos_token": None, "eos_token": specials[2], "pad_token": specials[0]}
    with open(f"{folder}/tokenizer_config.json", "w") as out:
        json.dump({**names, "chat_template": TEMPLATE}, out)
    return PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json", chat_template=TEMPLATE, eos_token=specials[2], pad_token=specials[0])


def pairs(count, seed):
    rng = random.Random(seed)
    text = lambda most: " ".join(rng.choices(WORDS, k=rng.randrange(1, most)))
    for _ in range(count):
        yield {"prompt": [{"role": "user", "content": text(6)}], "chosen": [{"role": "assistant", "content": text(9)}], "rejected": [{"role": "assistant", "content": text(9)}]}


def judged(count, seed):
    for i, pair in enumerate(pairs(count, seed)):
        yield {"prompt": pair["prompt"], "completion": pair["chosen" if i % 2 else "rejected"], "label": i % 3 > 0}


def kto_run(work, lora, keys, model, tokenizer, steps, batch, optimizer):
    """As trl_run, in which a batch of KTOTrainer, whose completions it rotates, is a row of ours; a step has `batch` rows."""
    train, valid = (datasets.Dataset.from_list(json.loads(open(f"{work}/{name}.json").read())) for name in ("train", "valid"))
    config = KTOConfig(output_dir=f"{work}/trl", max_steps=1, per_device_train_batch_size=2, use_cpu=True, bf16=False, gradient_checkpointing=False, max_length=LENGTH,
                       report_to=[], disable_tqdm=True, **keys)
    trainer = KTOTrainer(model=model, args=config, train_dataset=train, eval_dataset=valid, processing_class=tokenizer, **({} if lora else dict(ref_model=copy.deepcopy(model))))
    trained = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    adam = torch.optim.AdamW(trained, lr=optimizer["lr"], betas=(0.9, 0.95), eps=optimizer["eps"], weight_decay=0)

    def rows_of(path, dataset):
        """The answers of each row of ours as they are in TRL's data set, with the completion of the one before."""
        found, file = [], h5py.File(path)
        left = {}
        for example in dataset:
            left.setdefault((*example["prompt_ids"], *example["completion_ids"]), []).append(example)
        for ids, mask, starts in zip(file["input_ids"], file["loss_mask"], file["seq_start_id"]):
            ends, answers = [*starts[1:], len(ids)], []
            for a, b in list(zip(starts, ends))[:len(starts) // 2 * 2:2]:
                example = dict(left[tuple(ids[a:b])].pop())
                assert set(mask[a:b]) - {0} == {1 if example["label"] else 2}
                answers.append(example)
            for i, example in enumerate(answers):
                example["KL_completion_ids"] = answers[i - 1]["completion_ids"]
            found.append(answers)
        assert not any(left.values()) and any(len(answers) > 2 for answers in found), [len(answers) for answers in found]
        return found

    def means(rows, backward):
        """The loss over all answers of the rows, and what TRL tells."""
        total, sums = sum(map(len, rows)), {}
        for answers in rows:
            loss = trainer.compute_loss(trainer.model, trainer.data_collator(answers)) * (len(answers) / total)
            if backward:
                loss.backward()
            told = {key: values[-1] for key, values in trainer._metrics["train"].items()}
            trainer._metrics["train"].clear()
            good = sum(example["label"] for example in answers)
            for key, count in (("rewards/chosen", good), ("rewards/rejected", len(answers) - good), ("logps/chosen", good), ("logps/rejected", len(answers) - good), ("kl", len(answers))):
                before = sums.get(key, (0.0, 0))
                sums[key] = (before[0] + count * (told[key] if count else 0.0), before[1] + count)
            sums["loss"] = (sums.get("loss", (0.0, 1))[0] + loss.item(), 1)
        all_means = {key: value / count for key, (value, count) in sums.items()}
        return {**all_means, "rewards/margins": all_means["rewards/chosen"] - all_means["rewards/rejected"]}

    rows, logs = rows_of(f"{work}/train.h5", trainer.train_dataset), []
    trainer.model.train()
    for step in range(steps):
        log = means([rows[i % len(rows)] for i in range(step * batch, (step + 1) * batch)], True)
        log["grad_norm"] = torch.nn.utils.clip_grad_norm_(trained, optimizer["clip"]).item()
        adam.step()
        adam.zero_grad()
        logs.append(log)
    with torch.no_grad():
        evaluation = {f"eval_{key}": value for key, value in means(rows_of(f"{work}/valid.h5", trainer.eval_dataset), False).items()}
    return logs, evaluation, trainer.model


class Differences:
    def __init__(self):
        self.worst, self.failures = {}, []

    def add(self, kind, name, got, want, tolerance, scale=None):
        error = abs(got - want) / (scale or max(abs(want), 1e-2))
        self.worst[kind] = max(self.worst.get(kind, 0.0), error)
        if not error <= tolerance:
            self.failures.append(f"{name}: {got!r} against {want!r}, error {error:.3g} > {tolerance}")


def trl_run(work, objective, lora, keys, model, tokenizer, steps, batch, accumulate, optimizer):
    """The logs of TRL's trainer on the same pairs, its evaluation after the last step, and the model."""
    if objective == "kto":
        return kto_run(work, lora, keys, model, tokenizer, steps, batch, optimizer)
    base = DPOTrainer if objective == "dpo" else ORPOTrainer
    train, valid = (datasets.Dataset.from_list(json.loads(open(f"{work}/{name}.json").read())) for name in ("train", "valid"))
    config = (DPOConfig if objective == "dpo" else ORPOConfig)(
        output_dir=f"{work}/trl", max_steps=steps, per_device_train_batch_size=batch, gradient_accumulation_steps=accumulate, per_device_eval_batch_size=len(valid),
        learning_rate=optimizer["lr"], lr_scheduler_type="constant", adam_beta2=0.95, adam_epsilon=optimizer["eps"], max_grad_norm=optimizer["clip"], weight_decay=0.0,
        logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, max_length=LENGTH, disable_tqdm=True,
        train_sampling_strategy="sequential", **keys)
    reference = {}
    if objective == "dpo" and lora is None:
        reference["ref_model"] = copy.deepcopy(model)
    trainer = base(model=model, args=config, train_dataset=train, eval_dataset=valid, processing_class=tokenizer, **reference)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    logs = [line for line in trainer.state.log_history if "grad_norm" in line]
    assert len(logs) == steps, logs
    return logs, trainer.evaluate(), trainer.model


def our_run(args, work, name, objective, lora, section, overrides, steps, batch, optimizer):
    command = [f"{args.bin}/train_llama", "--config", f"{work}/run.yaml", "--set", f"train.objective={objective}", "--set", f"output.dir={name}", "--set", f"train.max_steps={steps}",
               "--set", f"optimizer.lr={optimizer['lr']}", "--set", f"optimizer.eps={optimizer['eps']}", "--set", f"optimizer.grad_clip={optimizer['clip']}",
               "--set", f"batch.global_batch_size={batch}", "--set", f"batch.micro_batch_size={2 if batch % 2 == 0 else 1}"]
    for key, value in {**{f"preference.{key}": value for key, value in section.items()}, **overrides}.items():
        command += ["--set", f"{key}={value}"]
    if lora:
        command += ["--set", "lora.r=4", "--set", "lora.alpha=8", "--set", "lora.target_modules=[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]", "--set", "lora.dropout=0.3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"train_llama ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    lines = [json.loads(line) for line in open(f"{work}/{name}/metrics.jsonl")]
    return [line for line in lines if line["event"] == "train"], [line for line in lines if line["event"] == "eval"][-1]


def load(work, name, lora):
    if lora:
        return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(f"{work}/base", dtype=torch.float32), f"{work}/{name}/adapter", is_trainable=True)
    return AutoModelForCausalLM.from_pretrained(f"{work}/{name}/model" if name else f"{work}/base", dtype=torch.float32)


def compare_weights(work, name, lora, theirs, differences, kind, tolerance, start=None):
    """`start`: differences count relative to the largest change of a tensor."""
    mine = dict(load(work, name, lora).named_parameters())
    begin = dict(start.named_parameters()) if start is not None else {}
    compared = 0
    for key, value in theirs.named_parameters():
        if ".ref." in key or (lora and not value.requires_grad):
            continue
        scale = (value - begin[key]).abs().max().item() if begin else None
        if begin and scale == 0:  # B = 0: A has no gradient
            assert torch.equal(mine[key], value), key
            continue
        differences.add(kind, f"{name} {key}", (mine[key] - value).abs().max().item(), 0.0, tolerance, scale or 1.0)
        compared += 1
    assert compared > 0
    return compared


def check(args, name):
    objective, lora, section, keys, overrides = CASES[name]
    differences = Differences()
    torch.manual_seed(17)
    with tempfile.TemporaryDirectory() as work:
        os.environ["HF_DATASETS_CACHE"] = f"{work}/cache"
        os.makedirs(f"{work}/base")
        tokenizer = write_tokenizer(f"{work}/base")
        shape = dict(vocab_size=len(tokenizer) + 5, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                     max_position_embeddings=128, tie_word_embeddings="tied" in name)
        model = AutoModelForCausalLM.from_config(Qwen2Config(**shape) if lora else LlamaConfig(**shape), dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(4)  # log-probabilities that differ from the start
        model.save_pretrained(f"{work}/base")
        for split, count, seed in (("train", PAIRS, 1), ("valid", 7, 2)):
            with open(f"{work}/{split}.json", "w") as out:
                json.dump(list((judged if objective == "kto" else pairs)(count * (3 if objective == "kto" else 1), seed)), out)
            packed = "packed" in name
            length = (4 if packed or objective == "kto" else 2) * LENGTH
            subprocess.run([f"{args.bin}/trireme", "data", "preference", "--model", f"{work}/base", "--input", f"{work}/{split}.json", "--output", f"{work}/{split}.h5", "--seq-length", str(length),
                            "--max-length", str(LENGTH), *(["--unpaired"] if objective == "kto" else [] if packed else ["--one-per-row"])], check=True, capture_output=True)
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""model: {{path: base}}
data: {{train: train.h5, valid: valid.h5, seq_length: {length}, shuffle: false}}
optimizer: {{betas: [0.9, 0.95], weight_decay: 0.0}}
schedule: {{name: constant}}
precision: {{compute: fp32}}
""")
        # Packed: every step has all pairs, whose rows are fewer.
        rows = None
        if packed:
            rows = len(h5py.File(f"{work}/train.h5")["input_ids"])
            assert rows < PAIRS / 2, rows
        batch, trl_batch, accumulate = (rows, PAIRS, 1) if packed else (GBS, GBS, 1)
        if "accumulated" in name:
            trl_batch, accumulate = 2, 2
        plain = dict(lr=LR, eps=1e-6, clip=CLIP)
        if lora == "adapter":
            adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.3, task_type="CAUSAL_LM",
                                                       target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]))
            with torch.no_grad():
                for key, parameter in adapted.named_parameters():
                    if "lora_B" in key:
                        parameter.normal_(0, 0.05)
            adapted.save_pretrained(f"{work}/start/adapter")
            overrides = {**overrides, "lora.adapter": "start/adapter"}
        elif lora == "new":
            # Our adapters as they are before the first step: a step of a rate that changes nothing.
            our_run(args, work, "start", objective, lora, section, overrides, 1, batch, dict(plain, lr=1e-30))
        start = "start" if lora else ""

        logs, evaluation, trained = trl_run(work, objective, lora, keys, load(work, start, lora), tokenizer, STEPS, trl_batch, accumulate, plain)
        steps, ours = our_run(args, work, "run", objective, lora, section, overrides, STEPS, batch, plain)
        names = [key for key in logs[0] if key.startswith(("rewards/", "logps/"))] + (["nll_loss", "log_odds_ratio", "log_odds_chosen"] if objective == "orpo" else ["kl"] if objective == "kto" else [])
        assert len(names) >= 6, names
        assert objective != "kto" or "apo" in name or any(log["kl"] > 1e-3 for log in logs), "the KL term is never above 0"
        for line, log in zip(steps, logs, strict=True):
            place = f"step {line['step']}"
            differences.add("loss", f"{place} loss", line["loss"], float(log["loss"]), 2e-5)
            differences.add("grad_norm", f"{place} grad_norm", line["grad_norm"], float(log["grad_norm"]), 2e-4)
            for key in names:
                differences.add("metrics", f"{place} {key}", line[key], float(log[key]), 2e-4)
        differences.add("evaluation", "eval loss", ours["loss"], evaluation["eval_loss"], 2e-4)
        for key in names:
            differences.add("evaluation", f"eval {key}", ours[key], evaluation[f"eval_{key}"], 5e-4)
        compare_weights(work, "run", lora, trained, differences, "weights", 2e-4)

        # One step whose update is a function of the gradient: lr g / (|g| + eps).
        once = dict(lr=1.0, eps=1.0, clip=1e9)
        begin = load(work, start, lora)
        _, _, trained = trl_run(work, objective, lora, keys, load(work, start, lora), tokenizer, 1, trl_batch, accumulate, once)
        our_run(args, work, "once", objective, lora, section, overrides, 1, batch, once)
        count = compare_weights(work, "once", lora, trained, differences, "gradients", 2e-4, begin)
    print(f"{name}: loss {steps[0]['loss']:.5f} -> {steps[-1]['loss']:.5f}; worst errors " + ", ".join(f"{kind} {value:.1e}" for kind, value in differences.worst.items()) + f"; {count} gradients", flush=True)
    return differences.failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--case", action="append")
    args = parser.parse_args()
    torch.set_num_threads(1)
    failed = False
    for name in args.case or CASES:
        failures = check(args, name)
        if failures:
            failed = True
            print(f"{name}:", "\n".join(failures[:10]))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
