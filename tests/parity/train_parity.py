#!/usr/bin/env python3
"""Ten steps of train_llama against a plain transformers + peft loop: losses, gradient norms, learning rates, final weights, and the
artefacts opened by transformers and peft; adapters also merged by `trireme adapter merge`. Exit code 77 = skipped."""
import argparse
import copy
import json
import math
import os
import subprocess
import sys
import tempfile

from needed import needed

with needed():
    if "--nf4" in sys.argv:
        import bitsandbytes  # noqa: F401  transformers opens NF4 with it; not installed by scripts/setup.sh
    import numpy as np
    import torch
    import xxhash
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import (AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, GraniteConfig, LlamaConfig, MistralConfig, Olmo2Config,
                              Phi3Config, Qwen2Config, Qwen3Config, SmolLM3Config)
    from transformers.integrations.neftune import activate_neftune
    from transformers.trainer_pt_utils import LabelSmoother

VOCAB, SEQ, STEPS, GBS, MBS = 97, 33, 10, 4, 2
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PATTERN = dict(target_modules=r".*\.(q|v|down)_proj", rank_pattern={"v_proj": 5, r"layers\.1\.mlp\..*": 2}, alpha_pattern={"q_proj": 11})
# --case adapter-NAME: model, LoraConfig's arguments, which are the keys of section lora.
ADAPTERS = {
    "all-linear": ("gqa", dict(target_modules="all-linear", use_rslora=True)),
    "pattern": ("qwen3", dict(PATTERN, use_rslora=True)),
    "layers": ("gqa", dict(target_modules=["q_proj", "mlp.up_proj", "model.layers.0.self_attn.o_proj"], layers_to_transform=[1, 2],
                           exclude_modules=["layers.1.self_attn.q_proj"])),
    "saved": ("qwen3", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])),
    "saved-embedding-of-tied": ("tied", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
    "saved-output-of-tied": ("tied", dict(target_modules=["q_proj"], modules_to_save=["lm_head"])),
    "saved-tied": ("tied", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
    "saved-gpt2": ("gpt2", dict(target_modules=["c_attn"], modules_to_save=["wte"])),
    "tokens": ("gqa", dict(target_modules=["q_proj"], trainable_token_indices=[50, 3, 4])),
    "tokens-of-both": ("qwen3", dict(target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [50, 3, 4], "lm_head": [7, 8]})),
    "tokens-of-tied": ("tied", dict(target_modules=["q_proj"], trainable_token_indices=[50, 3, 4])),
    "embedding": ("gqa", dict(target_modules=["embed_tokens", "o_proj"])),
    "embedding-of-tied": ("tied", dict(target_modules=["embed_tokens", "o_proj"])),
    "dora": ("gqa", dict(target_modules="all-linear", use_dora=True)),
    "dora-pattern": ("qwen3", dict(PATTERN, use_dora=True)),
    "dora-gpt2": ("gpt2", dict(target_modules=["c_attn", "c_proj", "c_fc"], use_dora=True, bias="lora_only")),
    "bias-all": ("gpt2", dict(target_modules=["c_fc"], bias="all")),
    "bias-lora-only": ("qwen2", dict(target_modules=["q_proj", "o_proj"], bias="lora_only")),
}


def model_config(kind, hidden=48, intermediate=80):
    extra = {}
    if kind == "mha":
        extra = dict(num_key_value_heads=4)
    if kind == "tied":
        extra = dict(tie_word_embeddings=True)
    if kind == "llama3":
        extra = dict(rope_theta=500000.0, max_position_embeddings=131072,
                     rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                       original_max_position_embeddings=8192))
    base = dict(vocab_size=VOCAB, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5)
    if kind == "mistral":
        return MistralConfig(**base, sliding_window=SEQ)
    if kind == "window":
        return MistralConfig(**base, sliding_window=7)
    if kind == "yarn":
        base.update(max_position_embeddings=64, rope_parameters=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=1e4))
        return LlamaConfig(**base)
    if kind == "phi3":
        factors = dict(short_factor=[1.0, 1.5, 2.0], long_factor=[1.0, 3.0, 8.0])
        return Phi3Config(**base, pad_token_id=None, original_max_position_embeddings=16, sliding_window=20,
                          rope_parameters=dict(rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.5, **factors))
    if kind == "olmo2":
        return Olmo2Config(**base, pad_token_id=None)
    if kind == "smollm3":
        return SmolLM3Config(**base, pad_token_id=None, no_rope_layers=[1, 0, 1], bos_token_id=1, eos_token_id=2)
    if kind == "granite":
        return GraniteConfig(**base, embedding_multiplier=6.0, residual_multiplier=0.22, attention_multiplier=0.125, logits_scaling=3.0)
    if kind == "gemma3":
        return Gemma3TextConfig(**base, head_dim=16, query_pre_attn_scalar=24, sliding_window=7, pad_token_id=None,
                                layer_types=["sliding_attention", "full_attention", "sliding_attention"])
    if kind == "qwen2":
        return Qwen2Config(**base)
    if kind == "qwen3":
        return Qwen3Config(**base, head_dim=16)
    if kind == "gpt2":  # without dropout: its decisions are not torch's
        return GPT2Config(vocab_size=VOCAB, n_embd=48, n_layer=3, n_head=4, n_positions=SEQ, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
                          bos_token_id=1, eos_token_id=2)
    return LlamaConfig(**{**base, **extra})


def write_data(path, rows, seed):
    rng = np.random.default_rng(seed)
    data = rng.integers(3, VOCAB, size=(rows, SEQ)).astype(np.int32)
    # Learnable data: every second token repeats the one before.
    data[:, 1::2] = data[:, 0:-1:2]
    np.save(path, data)
    return torch.from_numpy(data.astype(np.int64))


def lr_at(step, lr, warmup, steps, minimum):
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    return minimum + (lr - minimum) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def epoch_order(rows, seed, count):
    state, order = np.random.RandomState(seed), []
    while len(order) < count:
        epoch = np.arange(rows)
        state.shuffle(epoch)
        order += epoch.tolist()
    return order


def close(name, got, want, tolerance, failures, relative=True):
    error = abs(got - want) / (abs(want) if relative else 1.0)
    if not error <= tolerance:
        failures.append(f"{name}: {got!r} against {want!r}, error {error:.3g} > {tolerance}")
    return error


def parameters(model):
    """Rows of the vocabulary in the order of their ids, which peft's files may have in any."""
    found = dict(model.named_parameters(remove_duplicate=False))
    for name in found:
        if "trainable_tokens_delta" in name:
            ids = model.get_submodule(name[:name.index(".trainable_tokens_delta")]).token_indices["default"]
            found[name] = found[name][torch.tensor(ids).argsort()]
    return found


def open_base(path):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, device_map="cpu").eval()
    for module in model.modules():  # bitsandbytes would multiply in bf16
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


class Noise:
    """What ops/dropout.h draws for NEFTune, in the place of torch's uniform numbers in transformers' hook."""

    def __init__(self, seed, width):
        self.seed, self.width, self.sample, self.torchs = seed, width, None, torch.Tensor.uniform_
        torch.Tensor.uniform_ = lambda tensor, low=0, high=1: tensor.copy_(self.draw() * high)

    def draw(self):
        def mix(x):
            x = (x ^ (x >> 16)) * 0x21F0AAAD & 0xFFFFFFFF
            x = (x ^ (x >> 15)) * 0x735A2D97 & 0xFFFFFFFF
            return x ^ (x >> 15)
        key = xxhash.xxh3_64_intdigest((15).to_bytes(8, "little"), xxhash.xxh3_64_intdigest(b"noise", self.seed))
        sample = np.uint64(self.sample)
        k0 = mix(mix(sample ^ np.uint64(key & 0xFFFFFFFF)) ^ np.uint64(key >> 32))
        k1 = mix((k0 + np.uint64(0x9E3779B9)) & np.uint64(0xFFFFFFFF))
        word = np.arange(SEQ * self.width // 2, dtype=np.uint64)
        h = mix(mix(word ^ k0) ^ k1)
        bits = np.stack([h & np.uint64(0xFFFF), h >> np.uint64(16)], 1).reshape(1, SEQ, self.width)
        return torch.from_numpy(((bits.astype(np.float64) + 0.5) / 32768 - 1).astype(np.float32))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-llama", required=True)
    parser.add_argument("--neftune", type=float, default=0)
    parser.add_argument("--label-smoothing", type=float, default=0)
    parser.add_argument("--case", required=True)
    parser.add_argument("--nf4", choices=["values", "codes"], help="the base in bitsandbytes' NF4: made while values are loaded, or as stored")
    parser.add_argument("--launch", default="", help="prefix such as 'mpirun -n 2'")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    mode, kind = args.case.split("-", 1)
    arguments = dict(target_modules={"mha": ["q_proj", "v_proj"], "gpt2": ["c_attn", "c_proj", "c_fc"],
                                     "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}.get(kind, SEVEN))
    name = kind
    if mode == "adapter":
        mode, (kind, arguments) = "lora", ADAPTERS[name]
    torch.manual_seed(11)
    torch.set_num_threads(1)
    failures = []
    with tempfile.TemporaryDirectory() as work:
        # bitsandbytes' CPU library (0.50) reads other scales where rows are no whole blocks.
        config = model_config(kind, 64, 128) if args.nf4 else model_config(kind)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        model.save_pretrained(f"{work}/base", safe_serialization=True)
        tool = os.path.join(os.path.dirname(os.path.abspath(args.train_llama)), "trireme")
        base = f"{work}/base"
        if args.nf4:
            base = f"{work}/nf4"
            subprocess.run([tool, "model", "quantize", "--model", f"{work}/base", "--output", base], check=True, capture_output=True)
            model = open_base(base)
            args.set.append("precision.frozen=nf4")
            if args.nf4 == "codes":
                args.set.append(f"model.path={base}")
        data = write_data(f"{work}/train.npy", 24, 1)
        valid = write_data(f"{work}/valid.npy", 7, 2)
        lr, warmup, minimum, clip, decay, seed = 3e-3, 2, 1e-4, 0.5, 0.05, 4321
        lora = ""
        if mode == "lora":
            peft_config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, task_type="CAUSAL_LM", **copy.deepcopy(arguments))  # peft changes its lists
            model = get_peft_model(model, peft_config)
            with torch.no_grad():
                for parameter_name, parameter in model.named_parameters():
                    if "lora_B" in parameter_name or "lora_embedding_A" in parameter_name:
                        parameter.normal_(0, 0.02)
                    elif "magnitude" in parameter_name:
                        parameter.mul_(torch.rand_like(parameter) * 0.1 + 0.95)
                if kind == "fused":  # one A for q, k and v
                    for layer in model.base_model.model.model.layers:
                        a = layer.self_attn.q_proj.lora_A["default"].weight
                        layer.self_attn.k_proj.lora_A["default"].weight.copy_(a)
                        layer.self_attn.v_proj.lora_A["default"].weight.copy_(a)
            model.save_pretrained(f"{work}/start")
            if kind == "fused":
                arguments = dict(target_modules=["qkv_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
            lora = "lora: " + json.dumps(dict(r=4, alpha=8, dropout=0.0, adapter="start", **arguments))
            if kind == "fused":  # tie the three A by sharing one parameter
                for layer in model.base_model.model.model.layers:
                    shared = layer.self_attn.q_proj.lora_A["default"]
                    layer.self_attn.k_proj.lora_A["default"] = shared
                    layer.self_attn.v_proj.lora_A["default"] = shared
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        groups = [dict(params=[p for _, p in trained if p.dim() >= 2], weight_decay=decay),
                  dict(params=[p for _, p in trained if p.dim() < 2], weight_decay=0.0)]
        # eps 1e-6: with 1e-8 the rounding of gradients near zero decides the sign of an update in both programs.
        optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=(0.9, 0.95), eps=1e-6)
        order = epoch_order(len(data), seed, STEPS * GBS)
        want = []
        smooth = LabelSmoother(args.label_smoothing)
        if args.label_smoothing:
            args.set.append(f"train.label_smoothing={args.label_smoothing}")
        if args.neftune:
            noise = Noise(seed, 48)
            hook = activate_neftune(model, args.neftune)
            model.get_input_embeddings().training = True
        for step in range(STEPS):
            rows = data[order[step * GBS:(step + 1) * GBS]]
            loss = 0
            for i, row in enumerate(rows):
                if args.neftune:
                    noise.sample = step * GBS + i
                out = model(input_ids=row[None], labels=row[None])
                loss = loss + (smooth(out, row[None], shift_labels=True) if args.label_smoothing else out.loss) / GBS
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_([p for _, p in trained], clip)
            rate = lr_at(step, lr, warmup, STEPS, minimum)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            want.append((loss.item(), norm.item(), rate))
        if args.neftune:
            hook.remove()
            torch.Tensor.uniform_ = noise.torchs
            args.set.append(f"train.neftune_alpha={args.neftune}")
        with torch.no_grad():
            eval_loss = sum(model(input_ids=row[None], labels=row[None]).loss.item() for row in valid) / len(valid)

        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""
model: {{path: base}}
{lora}
data: {{train: train.npy, valid: valid.npy, seq_length: {SEQ}}}
batch: {{global_batch_size: {GBS}, micro_batch_size: {MBS if not args.launch else 1}}}
optimizer: {{lr: {lr}, betas: [0.9, 0.95], eps: 1.0e-6, weight_decay: {decay}, grad_clip: {clip}}}
schedule: {{name: cosine, warmup_steps: {warmup}, min_lr: {minimum}}}
train: {{max_steps: {STEPS}, seed: {seed}}}
precision: {{compute: fp32}}
output: {{dir: run}}
""")
        command = args.launch.split() + [args.train_llama, "--config", f"{work}/run.yaml"]
        for override in args.set:
            command += ["--set", override]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print(done.stdout[-3000:], done.stderr[-3000:])
            sys.exit(f"train_llama ended with {done.returncode}")
        lines = [json.loads(line) for line in open(f"{work}/run/metrics.jsonl")]
        steps = [line for line in lines if line["event"] == "train"]
        assert len(steps) == STEPS, f"{len(steps)} train lines"
        worst = worst_norm = 0.0
        for line, (loss, norm, rate) in zip(steps, want):
            worst = max(worst, close(f"step {line['step']} loss", line["loss"], loss, 1e-5, failures))
            worst_norm = max(worst_norm, close(f"step {line['step']} grad_norm", line["grad_norm"], norm, 1e-4, failures))
            close(f"step {line['step']} lr", line["lr"], rate, 1e-12, failures)
        ours_eval = [line for line in lines if line["event"] == "eval"][-1]["loss"]
        close("eval loss", ours_eval, eval_loss, 1e-5, failures)

        # The artefact, opened by transformers or peft.
        if mode == "lora":
            loaded = PeftModel.from_pretrained(open_base(base), f"{work}/run/adapter")
        else:
            loaded = AutoModelForCausalLM.from_pretrained(f"{work}/run/model", dtype=torch.float32)
        loaded.eval()
        model.eval()
        theirs, mine = parameters(model), parameters(loaded)
        weight_error = 0.0
        for name, value in theirs.items():
            error = (mine[name] - value).abs().max().item()
            weight_error = max(weight_error, error)
            if not error <= 1e-4:
                failures.append(f"{name} differs by {error:.3g}")
        with torch.no_grad():
            logit_error = (loaded(input_ids=valid).logits - model(input_ids=valid).logits).abs().max().item()
        if not logit_error <= 1e-3:
            failures.append(f"logits differ by {logit_error:.3g}")
        merged = ""
        if mode == "lora":
            done = subprocess.run([tool, "adapter", "merge", "--model", f"{work}/base", "--adapter", f"{work}/run/adapter", "--output",
                                   f"{work}/merged"], capture_output=True, text=True)
            if done.returncode != 0:
                failures.append(f"adapter merge ended with {done.returncode}: {done.stderr}")
            else:
                with torch.no_grad():
                    whole = AutoModelForCausalLM.from_pretrained(f"{work}/merged", dtype=torch.float32).eval()
                    merge_error = (whole(input_ids=valid).logits - loaded(input_ids=valid).logits).abs().max().item()
                if args.nf4:  # merged into the weights that the codes were made from
                    plain = open_base(f"{work}/base")
                    with torch.no_grad():
                        moved = (loaded(input_ids=valid).logits - plain(input_ids=valid).logits).abs().max().item()
                        whole_loss = sum(whole(input_ids=row[None], labels=row[None]).loss.item() for row in valid) / len(valid)
                    print(f"{args.case}: merged into the values instead of the codes: logits {merge_error:.2e} away, loss {whole_loss:.4f} instead "
                          f"of {eval_loss:.4f}; training moved the logits by {moved:.2e}")
                    loaded = PeftModel.from_pretrained(plain, f"{work}/run/adapter")
                    with torch.no_grad():
                        merge_error = (whole(input_ids=valid).logits - loaded(input_ids=valid).logits).abs().max().item()
                mine, theirs = whole.state_dict(), loaded.merge_and_unload().state_dict()
                assert mine.keys() == theirs.keys(), mine.keys() ^ theirs.keys()
                if args.case == "adapter-embedding-of-tied":  # peft merges into the matrix that is the output's, too, which its adapter does not change
                    theirs.pop("lm_head.weight")
                unload_error = max((mine[name] - value).abs().max().item() for name, value in theirs.items())
                merged = f", merged {merge_error:.2e}, against merge_and_unload {unload_error:.2e}"
                if not (merge_error <= 1e-4 and unload_error <= 1e-6):
                    failures.append(f"the merged model's logits differ by {merge_error:.3g}, its weights from peft's by {unload_error:.3g}")
        print(f"{args.case}: worst loss error {worst:.2e} relative, gradient norm {worst_norm:.2e}, weights {weight_error:.2e}, "
              f"logits {logit_error:.2e}{merged}, loss {want[0][0]:.4f} -> {want[-1][0]:.4f}")
    sys.exit("\n".join(failures[:20]) or 0)


if __name__ == "__main__":
    main()
