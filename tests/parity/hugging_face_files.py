#!/usr/bin/env python3
"""Files of transformers and peft with fields that change their meaning. The tools read them as transformers 5 and peft 0.21 do, or refuse them by
name; and a vocabulary that grows. Exit code 77 = skipped.

usage: hugging_face_files.py --bin DIRECTORY"""
import argparse
import dataclasses
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from needed import needed

with needed():
    import numpy as np
    import sentencepiece
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors.torch import load_file, save_file
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Tokenizer

SHAPE = dict(vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64)


class Site:
    def __init__(self, binaries, work):
        self.bin, self.work = binaries, Path(work)

    def run(self, program, *arguments, code=0, says=()):
        done = subprocess.run([f"{self.bin}/{program}", *map(str, arguments)], capture_output=True, text=True)
        text = done.stdout + done.stderr
        assert done.returncode == code, f"{program} {arguments}: exit {done.returncode}, not {code}\n{text[-3000:]}"
        for words in [says] if isinstance(says, str) else says:
            assert words in text, f"{program} {arguments}: no '{words}' in\n{text[-3000:]}"
        return text

    def trireme(self, *arguments, **expected):
        return self.run("trireme", *arguments, **expected)

    def save(self, name, **shape):
        """A model with weights large enough to distinguish errors from rounding."""
        torch.manual_seed(1)
        model = LlamaForCausalLM(LlamaConfig(**{**SHAPE, **shape}))
        with torch.no_grad():
            for value in model.parameters():
                value.add_(torch.randn_like(value) * 0.1)
        model.save_pretrained(self.work / name)
        return self.work / name


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def logits(model, ids=((1, 7, 3, 50, 22, 9),)):
    with torch.no_grad():
        return model(torch.tensor(ids)).logits


def edit(path, **fields):
    text = json.loads(path.read_text())
    for key, value in fields.items():
        if value is KeyError:
            text.pop(key, None)
        else:
            text[key] = value
    path.write_text(json.dumps(text))


def adapter_for(site, base, name, **options):
    torch.manual_seed(2)
    model = get_peft_model(load(base), LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **{"target_modules": ["q_proj", "down_proj"], **options}))
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "lora_B" in key:
                value.add_(torch.randn_like(value) * 0.1)
    model.save_pretrained(site.work / name)
    return site.work / name


# Fields of adapter_config.json that may have any value: they do not change what the adapter computes.
HARMLESS = {"auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "fan_in_fan_out",
            "inference_mode", "loftq_config",
            "lora_ga_config", "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config"}
READ = {"r", "lora_alpha", "lora_dropout"}


def check_adapter_fields(site, base):
    """Every field of LoraConfig is known; all that change the computation are refused together."""
    adapter = adapter_for(site, base, "fields")
    site.trireme("adapter", "show", adapter, says="4 modules")
    fields = {field.name for field in dataclasses.fields(LoraConfig)}
    odd = {name: "something" for name in fields - READ} | {name: {"k": 1} for name in ("target_modules", "exclude_modules")}  # texts are patterns
    edit(adapter / "adapter_config.json", from_the_future={"k": 1}, **odd)
    message = site.trireme("adapter", "show", adapter, code=4)
    for name in sorted(fields - READ | {"from_the_future"}):
        refused = f"{name}: " in message or f"{name} is " in message
        assert refused == (name not in HARMLESS), f"{name} is {'refused' if refused else 'taken'}: {message}"

    # PiSSA and OLoRA subtract the adapter's start from the base when peft loads it: base + B A is another model.
    for init in ("pissa_niter_4", "olora"):
        adapter = adapter_for(site, base, init, init_lora_weights=init)
        site.trireme("adapter", "merge", "--model", base, "--adapter", adapter, "--output", site.work / "never", code=4,
                     says=[f'init_lora_weights: "{init}"', "path_initial_model_for_weight_conversion"])
    # A module that target_modules does not name: peft ignores it.
    adapter = adapter_for(site, base, "narrower")
    edit(adapter / "adapter_config.json", target_modules=["q_proj"])
    site.trireme("adapter", "merge", "--model", base, "--adapter", adapter, "--output", site.work / "never", code=4, says="down_proj")
    # A module that target_modules names, and whose tensors the file lacks; what takes it out makes the file whole.
    adapter = adapter_for(site, base, "partial")
    path = adapter / "adapter_model.safetensors"
    tensors = {name: value for name, value in load_file(path).items() if "layers.1.mlp.down_proj" not in name}
    save_file(tensors, path)
    merge = ["adapter", "merge", "--model", base, "--adapter", adapter, "--output"]
    site.trireme(*merge, site.work / "never", code=4, says="has no tensors of model.layers.1.mlp.down_proj, which")
    edit(adapter / "adapter_config.json", exclude_modules=["layers.1.mlp.down_proj"])
    site.trireme(*merge, site.work / "partial-merged")
    for name in list(tensors):
        if "down_proj" in name:
            del tensors[name]
    save_file(tensors, path)
    edit(adapter / "adapter_config.json", exclude_modules=None)
    site.trireme(*merge, site.work / "never", code=4, says=["model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"])
    assert not (site.work / "never").exists()


def check_other_base(site, base):
    adapter = adapter_for(site, base, "named")
    merge = ["adapter", "merge", "--adapter", adapter, "--output", site.work / "named-merged", "--force"]
    assert "names the base" not in site.trireme(*merge, "--model", base)
    other = site.save("other-base")
    site.trireme(*merge, "--model", other, says=["warning: the adapter names the base", "other-base"])


def check_force(site, base):
    """A model of several files is replaced completely by one of a single file."""
    old = site.work / "old"
    load(base).save_pretrained(old, max_shard_size="20KB")
    assert (old / "model.safetensors.index.json").exists()
    (old / "notes.txt").write_text("kept")
    (old / "tokenizer.json").write_text("{}")
    shape = ["--hidden-size", 32, "--layers", 2, "--heads", 4, "--kv-heads", 2, "--intermediate-size", 48, "--vocab-size", 60, "--max-positions", 64]
    site.trireme("init-model", *shape, "--output", old, code=73, says="already holds a model")
    site.trireme("init-model", *shape, "--output", old, "--force")
    assert sorted(p.name for p in old.iterdir()) == ["config.json", "generation_config.json", "model.safetensors", "notes.txt"]
    fresh = site.work / "fresh"
    site.trireme("init-model", *shape, "--output", fresh)
    assert torch.equal(logits(load(old)), logits(load(fresh)))
    # Files that an interrupted program left count as a model too.
    half = site.work / "half"
    shutil.copytree(fresh, half)
    (half / "config.json").unlink()
    site.trireme("init-model", *shape, "--output", half, code=73, says="already holds a model")


def check_config(site):
    """init-model --config writes the configuration that it read: transformers must see the same model in both files."""
    linear = {"rope_type": "linear", "factor": 4.0}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    cases = [
        dict(rope_scaling=linear, rope_theta=5e5, rope_parameters={"rope_type": "default", "rope_theta": 1e4}, eos_token_id=[2, 5, 7], pad_token_id=3),
        dict(rope_scaling=linear, rope_parameters={}, bos_token_id=None, eos_token_id=None),
        dict(rope_scaling={}, rope_parameters={**llama3, "rope_theta": 5e5}, eos_token_id=[9], pad_token_id=-1),
        dict(rope_scaling={k: v for k, v in llama3.items() if k[0] != "o"}, original_max_position_embeddings=16, bos_token_id=4),
    ]
    plain = LlamaConfig(**SHAPE).to_dict()
    for case in cases:
        source = site.work / "config"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        drop = {key for key in ("rope_parameters", "rope_scaling", "rope_theta")}
        (source / "config.json").write_text(json.dumps({**{k: v for k, v in plain.items() if k not in drop}, "architectures": ["LlamaForCausalLM"], **case}))
        site.trireme("init-model", "--config", source / "config.json", "--output", site.work / "written", "--force")
        want, got = LlamaConfig.from_pretrained(source), LlamaConfig.from_pretrained(site.work / "written")
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            a, b = getattr(want, key), getattr(got, key)
            assert (a if isinstance(a, list) else [a]) == (b if isinstance(b, list) else [b]), f"{case}: {key} {a} became {b}"
        frequencies = [LlamaForCausalLM(c).model.rotary_emb.inv_freq for c in (want, got)]
        assert torch.equal(*frequencies), f"{case}: {frequencies}"


def check_unused_and_tied(site):
    tied = site.save("tied", tie_word_embeddings=True)
    tensors = load_file(tied / "model.safetensors")
    extra = {**tensors, "model.layers.0.self_attn.q_proj.bias": torch.ones(32), "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}

    def generate(content, **expected):
        save_file(content, tied / "model.safetensors", metadata={"format": "pt"})
        return site.trireme("model", "resize-vocab", "--model", tied, "--output", site.work / "looked-at", "--force", "--vocab-size", 61, **expected)

    generate(extra, says=["warning", "1 tensor that this llama has no use for: model.layers.0.self_attn.q_proj.bias"])
    extra["lm_head.weight"] = torch.randn(60, 32)  # transformers leaves such a model untied
    generate(extra, code=4, says=["tie_word_embeddings", "lm_head.weight differs"])
    # A file with only the output matrix: it is also the embedding.
    only_head = {("lm_head.weight" if k == "model.embed_tokens.weight" else k): v for k, v in tensors.items()}
    assert "warning" not in generate(only_head)
    want, got = load(tied), load(site.work / "looked-at")
    assert torch.equal(logits(want), logits(got)[..., :60])


def check_special_pieces(site):
    """The sentencepiece model's own names of BOS, EOS, PAD and UNK, and the ids that AutoTokenizer gives for them."""
    (site.work / "text.txt").write_text("\n".join("the quick brown fox jumps over the lazy dog again and again" for _ in range(40)))
    for name, options in {"odd": dict(bos_id=3, bos_piece="[BOS]", eos_id=0, eos_piece="[EOS]", pad_id=2, pad_piece="[PAD]", unk_id=1, unk_piece="[UNK]"),
                          "none": dict(bos_id=-1, eos_id=-1, pad_id=-1, unk_id=0)}.items():
        sentencepiece.SentencePieceTrainer.train(input=str(site.work / "text.txt"), model_prefix=str(site.work / name), vocab_size=300, model_type="bpe",
                                                 byte_fallback=True, minloglevel=2, hard_vocab_limit=False, **options)
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(site.work / f"{name}.model"))
        directory = site.work / f"model-{name}"
        site.trireme("init-model", "--hidden-size", 32, "--layers", 1, "--heads", 4, "--intermediate-size", 48, "--vocab-size", 304, "--tokenizer",
                     site.work / f"{name}.model", "--output", directory)
        config = LlamaConfig.from_pretrained(directory)
        for key in ("bos", "eos", "pad"):
            want = getattr(pieces, f"{key}_id")()
            assert getattr(config, f"{key}_token_id") == (want if want >= 0 else None), f"{name}: {key}"
        tokenizer = AutoTokenizer.from_pretrained(directory)
        text = "the lazy fox again"
        assert tokenizer(text)["input_ids"] == ([3] if name == "odd" else []) + pieces.encode(text), name
        assert max(tokenizer.all_special_ids, default=0) < 304 and len(tokenizer) <= 304, (name, len(tokenizer))
        if name == "odd":
            assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id) == (0, 2, 1)
        # Without tokenizer_config.json transformers uses other defaults: tools that copy a tokenizer.model write one.
        (directory / "tokenizer_config.json").unlink()
        site.trireme("model", "resize-vocab", "--model", directory, "--vocab-size", 305, "--output", site.work / f"copied-{name}")
        assert AutoTokenizer.from_pretrained(site.work / f"copied-{name}")(text)["input_ids"] == ([3] if name == "odd" else []) + pieces.encode(text)
    return site.work / "model-odd"


def check_resize(site, base, with_tokenizer):
    """New rows as in resize_token_embeddings: drawn with the mean of the old ones and 1e-9 of their covariance."""
    sharded = site.work / "sharded"
    load(base).to(torch.bfloat16).save_pretrained(sharded, max_shard_size="20KB")
    edit(sharded / "config.json", my_own_field=[1])
    out = site.work / "resized"
    site.trireme("model", "resize-vocab", "--model", sharded, "--output", out, "--vocab-size", 60, "--pad-to", 64)
    old, new = (LlamaForCausalLM.from_pretrained(path, dtype=torch.bfloat16) for path in (sharded, out))
    assert new.config.vocab_size == 64 and new.config.my_own_field == [1]
    theirs = LlamaForCausalLM.from_pretrained(sharded, dtype=torch.bfloat16)
    theirs.resize_token_embeddings(60, pad_to_multiple_of=64)
    for (name, ours), reference in zip(new.named_parameters(), theirs.parameters(), strict=True):
        assert ours.shape == reference.shape and torch.equal(ours[:60], reference[:60]), name
        # The random part is about bf16's resolution: the difference is only rounding.
        assert torch.allclose(ours.float(), reference.float(), rtol=0.01, atol=1e-3), name
    site.trireme("model", "resize-vocab", "--model", sharded, "--output", site.work / "smaller", "--vocab-size", 59, code=2, says="only added")
    site.trireme("model", "resize-vocab", "--model", sharded, "--output", out, "--vocab-size", 61, code=73, says="already holds a model")

    # Many rows of a model in fp32: mean, covariance, seed.
    many = [site.work / name for name in ("many", "again", "other")]
    for path, seed in zip(many, (0, 0, 1)):
        site.trireme("model", "resize-vocab", "--model", base, "--output", path, "--vocab-size", 560, "--seed", seed)
    first, again, other = ({k: v for k, v in load_file(path / "model.safetensors").items()} for path in many)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert torch.equal(first[name], again[name]) and not torch.equal(first[name], other[name])
        rows, drawn = first[name][:60].double(), first[name][60:].double()
        centred, noise = rows - rows.mean(0), drawn - rows.mean(0)
        want, got = centred.T @ centred / 60, noise.T @ noise / 500 / 1e-9
        assert (got - want).norm() / want.norm() < 0.5, "covariance"  # 500 draws of 32 dimensions: about 0.25
        assert abs(got.trace() / want.trace() - 1) < 0.1 and (noise.mean(0).abs().max() / 1e-9**0.5 < 0.05)
    # No more rows than columns: transformers uses only the mean.
    thin = site.save("thin", vocab_size=30)
    site.trireme("model", "resize-vocab", "--model", thin, "--output", site.work / "thin-resized", "--vocab-size", 32)
    rows = load_file(site.work / "thin-resized" / "model.safetensors")["lm_head.weight"]
    assert torch.allclose(rows[30:], rows[:30].mean(0).expand(2, -1), rtol=0, atol=1e-8)

    # Tokens: the same ids for transformers and for tokenizer.model, with tokenizer.json and without.
    AutoTokenizer.from_pretrained(with_tokenizer).save_pretrained(site.work / "json-saved")
    both = site.work / "both"
    shutil.copytree(with_tokenizer, both)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(site.work / "json-saved" / name, both)
    for number, directory in enumerate((with_tokenizer, both)):
        out = site.work / f"chat-{number}"
        count = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model")).vocab_size()
        site.trireme("model", "resize-vocab", "--model", directory, "--output", out, "--add-token", "<|im_start|>", "--add-token", "<|im_end|>",
                     "--pad-to", 8, says=[f"<|im_start|> = {count}", f"<|im_end|> = {count + 1}"])
        tokenizer = AutoTokenizer.from_pretrained(out)
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(out / "tokenizer.model"))
        assert pieces.vocab_size() == count + 2 and pieces.encode("<|im_start|>the fox<|im_end|>")[-1] == count + 1
        ids = tokenizer("<|im_start|>the fox<|im_end|>")["input_ids"]
        assert count in ids and ids[-1] == count + 1, ids
        assert {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.all_special_tokens)
        text = tokenizer.decode(ids, skip_special_tokens=True)
        assert "the fox" in text and "<|im_" not in text, text
        # A first row, written by hand, that is of the base's own tokens.
        shape = json.loads((out / "config.json").read_text())
        low = site.work / f"low-{number}"
        shutil.copytree(out, low)
        (low / "config.json").write_text(json.dumps({**shape, "trireme_added_rows": {"first": count - 1}}))
        np.save(site.work / "few.npy", np.full((4, 8), 5, np.int32))
        (site.work / "low.yaml").write_text("lora: {r: 2, target_modules: [q_proj]}\ndata: {train: few.npy, seq_length: 8}\nbatch: {global_batch_size: 4}\ntrain: {max_steps: 1}\noutput: {dir: low}\n")
        for model, code, says in ((out, 0, "were added to the base"), (low, 4, f"begins at row {count - 1}")):
            site.run("train_llama", "--config", site.work / "low.yaml", "--set", f"model.path={model}", "--dry-run", code=code, says=says)
    # Ids that only added_tokens.json names are taken.
    taken = site.work / "taken"
    shutil.copytree(with_tokenizer, taken)
    (taken / "added_tokens.json").write_text(json.dumps({"<extra>": count}))
    site.trireme("model", "resize-vocab", "--model", taken, "--output", site.work / "beside", "--add-token", "<|im_start|>", says=f"<|im_start|> = {count + 1}")
    assert json.loads((site.work / "beside" / "added_tokens.json").read_text()) == {"<extra>": count, "<|im_start|>": count + 1}
    site.trireme("tokenizer", "encode", "--model", site.work / "beside", "a<extra><|im_start|>", says=f"{count} {count + 1}")
    assert AutoTokenizer.from_pretrained(site.work / "beside").encode("a<extra><|im_start|>")[-2:] == [count, count + 1]
    # So are ids of tokens that are only named, and control pieces stay tokens beside a list of extra ones; a piece is no new token.
    named = site.work / "only-named"
    shutil.copytree(with_tokenizer, named)
    (named / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", "eos_token": "<eot>", "additional_special_tokens": []}))
    text = "a<eot><new>[EOS]b"
    site.trireme("model", "resize-vocab", "--model", named, "--output", site.work / "resized-named", "--add-token", "<new>", says=f"<new> = {count + 1}")
    ids = AutoTokenizer.from_pretrained(site.work / "resized-named").encode(text)
    assert ids[-4:-1] == [count, count + 1, 0], ids
    site.trireme("tokenizer", "encode", "--model", site.work / "resized-named", text, says=" ".join(map(str, ids)))
    # A list that lacks tokens of tokenizer.json would move the ids of others.
    listed = site.work / "listed"
    shutil.copytree(with_tokenizer, listed, ignore=shutil.ignore_patterns("tokenizer*", "special*", "added*"))
    made = Qwen2Tokenizer(vocab={letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    made.add_tokens(["<a>", "<b>", "<c>"], special_tokens=True)
    made.save_pretrained(listed)
    config = json.loads((listed / "tokenizer_config.json").read_text())
    flags = {token["id"]: {key: value for key, value in token.items() if key != "id"} for token in json.loads((listed / "tokenizer.json").read_text())["added_tokens"]}
    for lacking, option, code, says in ((0, ("--add-token", "<new>"), 0, "<new> = "), (1, ("--add-token", "<new>"), 4, "list them all there, or remove that list"), (2, ("--eos-token", "<c>"), 4, "would have the id")):
        config["added_tokens_decoder"] = dict(sorted(flags.items())[: len(flags) - lacking])
        (listed / "tokenizer_config.json").write_text(json.dumps(config))
        site.trireme("model", "resize-vocab", "--model", listed, "--output", site.work / f"of-listed-{lacking}", *option, code=code, says=says)
    # A token that only the list has gets into tokenizer.json, whose order gives the ids.
    last = max(flags)
    more = {**config, "tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {**flags, last + 1: {"content": "<d>", "special": True}}}
    (listed / "tokenizer_config.json").write_text(json.dumps(more))
    site.trireme("model", "resize-vocab", "--model", listed, "--output", site.work / "of-more", "--add-token", "<new>", says=f"<new> = {last + 2}")
    ids = AutoTokenizer.from_pretrained(site.work / "of-more").encode("<d><new>")
    assert ids == [last + 1, last + 2], ids
    # An id that is not the next one is refused.
    (named / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": {count + 1: {"content": "<far>", "special": True}}}))
    site.trireme("model", "resize-vocab", "--model", named, "--output", site.work / "twice", "--add-token", "<new>", code=3, says=f"has the id {count + 1}, but the {count} tokens")
    site.trireme("model", "resize-vocab", "--model", taken, "--output", site.work / "twice", "--add-token", pieces.id_to_piece(count - 1), code=2, says="already")
    site.trireme("model", "resize-vocab", "--model", site.work / "chat-1", "--output", site.work / "twice", "--add-token", "<|im_end|>", code=2, says="already")
    for words, tokens in (("is empty", [""]), ("given twice", ["<a>", "<a>"])):
        site.trireme("model", "resize-vocab", "--model", with_tokenizer, "--output", site.work / "twice", *(word for token in tokens for word in ("--add-token", token)),
                     code=2, says=words)
    # What ended texts before stays one token, also where tokenizer.model alone describes it.
    site.trireme("init-model", "--preset", "llama-tiny", "--vocab-size", count, "--tokenizer", with_tokenizer / "tokenizer.model", "--output", site.work / "made")
    site.trireme("model", "resize-vocab", "--model", site.work / "made", "--output", site.work / "ends", "--add-token", "<end>", "--eos-token", "<end>")
    first, second = (AutoTokenizer.from_pretrained(site.work / name) for name in ("made", "ends"))
    before, after = (tokenizer(f"a {first.eos_token} b")["input_ids"] for tokenizer in (first, second))
    assert second.eos_token == "<end>" and first.eos_token_id in before and before == after, (first.eos_token, before, after)
    # Every tool takes the token that the files name now.
    site.trireme("tokenizer", "encode", "--model", site.work / "ends", "--eos", "a", says=f" {second.eos_token_id}\n")
    (site.work / "one.txt").write_text("a\n\nb\n\nc\n")
    site.trireme("data", "pack", "--tokenizer", site.work / "ends", "--input", site.work / "one.txt", "--seq-length", 4, "--eos", "--output", site.work / "one.npy")
    assert second.eos_token_id in np.load(site.work / "one.npy")


def check_training(site, base):
    """LoRA with more rows than the model has: the run equals one on the resized model, and the adapter contains the new rows."""
    rng = np.random.default_rng(3)
    np.save(site.work / "rows.npy", rng.integers(0, 62, size=(8, 24)).astype(np.int32))
    for name, tie in (("base", False), ("tied-base", True)):
        model = base if not tie else site.save(name, tie_word_embeddings=True)
        config = site.work / f"{name}.yaml"
        config.write_text(f"""
model: {{path: {model}}}
lora: {{r: 4, alpha: 8, dropout: 0, target_modules: [q_proj, v_proj]}}
data: {{train: rows.npy, seq_length: 24}}
batch: {{global_batch_size: 4}}
optimizer: {{lr: 1.0e-2}}
train: {{max_steps: 3, seed: 5}}
precision: {{compute: fp32}}
output: {{dir: {name}-run, save_every_samples: 4}}
""")
        if not tie:
            site.run("train_llama", "--config", config, "--set", "output.dir=refused", code=3, says=["model.vocab_size", "trireme model resize-vocab"])
        site.run("train_llama", "--config", config, "--set", "model.vocab_size=62", "--set", "model.pad_vocab_to=4")
        adapter = site.work / f"{name}-run" / "adapter"
        losses = [json.loads(line)["loss"] for line in open(site.work / f"{name}-run" / "metrics.jsonl") if '"train"' in line]
        resized = site.work / f"{name}-resized"
        site.trireme("model", "resize-vocab", "--model", model, "--output", resized, "--vocab-size", 64, "--seed", 5)

        # peft writes the rows into a base that was resized with other values.
        torch.manual_seed(99)
        theirs = load(model)
        theirs.resize_token_embeddings(64)
        theirs = PeftModel.from_pretrained(theirs, adapter)
        ours = PeftModel.from_pretrained(load(resized), adapter)
        ids = ((1, 63, 5, 61, 60, 7),)
        assert torch.equal(logits(theirs, ids), logits(ours, ids))
        tokens = torch.from_numpy(np.load(site.work / "rows.npy").astype(np.int64))
        with torch.no_grad():
            start = load(resized)
            order = np.random.RandomState(5)
            first = np.arange(8)
            order.shuffle(first)
            want = np.mean([start(input_ids=tokens[i][None], labels=tokens[i][None]).loss.item() for i in first[:4]])
        assert abs(losses[0] - want) < 1e-5 * want, (losses[0], want)

        # The merged model has the rows and computes the same; peft's own merge gives the same.
        site.trireme("adapter", "merge", "--model", model, "--adapter", adapter, "--output", site.work / f"{name}-merged")
        merged = load(site.work / f"{name}-merged")
        assert merged.config.vocab_size == 64
        assert torch.allclose(logits(merged, ids), logits(theirs, ids), rtol=1e-5, atol=1e-5)
        assert torch.allclose(logits(merged, ids), logits(theirs.merge_and_unload(), ids), rtol=1e-5, atol=1e-5)
        # A checkpoint of the run gives the same adapter, the rows among it.
        site.trireme("checkpoint", "export", site.work / f"{name}-run", "--output", site.work / f"{name}-exported")
        other = load(model)
        other.get_parameter("model.norm.weight").data += 1
        other.save_pretrained(site.work / f"{name}-other")
        site.trireme("checkpoint", "export", site.work / f"{name}-run", "--output", site.work / f"{name}-exported-on-other", "--model", site.work / f"{name}-other", says="has other weights")
        mine, theirs = (load_file(path / "adapter_model.safetensors") for path in (adapter, site.work / f"{name}-exported"))
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine if "trainable_tokens" in k)
        # The rows that data may have are trained, those of the padding are not.
        for key in (key for key in mine if "trainable_tokens" in key):
            rows = load(resized).get_parameter("lm_head.weight" if "lm_head" in key else "model.embed_tokens.weight")[60:]
            moved = (mine[key] - rows).abs().amax(1)
            assert moved[0] > 1e-3 and (moved[2:] == 0).all(), (key, moved)
        check_rows_step(site, config, resized, name, tie, tokens[first[:4]])
        assert sum("trainable_tokens" in k for k in mine) == (1 if tie else 2)
    # Training resumes from such an adapter with its rows; without model.vocab_size it is refused.
    more = ["--config", site.work / "base.yaml", "--set", f"lora.adapter={site.work / 'base-run' / 'adapter'}", "--set", "output.dir=more"]
    site.run("train_llama", *more, "--set", "model.vocab_size=64", "--set", "train.seed=6")
    again = load_file(site.work / "more" / "adapter" / "adapter_model.safetensors")
    first = load_file(site.work / "base-run" / "adapter" / "adapter_model.safetensors")
    assert all((first[k] != again[k]).any() for k in first if "trainable_tokens" in k)
    # The rows of an adapter are not rounded to the type of the base.
    load(site.work / "base-resized").to(torch.bfloat16).save_pretrained(site.work / "narrow")
    site.run("train_llama", *more, "--set", f"model.path={site.work / 'narrow'}", "--set", "output.dir=same", "--set", "optimizer.lr=0")
    same = load_file(site.work / "same" / "adapter" / "adapter_model.safetensors")
    assert all(torch.equal(first[k], same[k]) for k in first)


def check_resized_adapters(site):
    """Adapters that peft saves after resize_token_embeddings(): with the embeddings, under the names that its wrappers give them."""
    ids = ((1, 61, 5, 60, 7),)
    kinds = {"tokens": dict(trainable_token_indices=[61, 60]), "saved": dict(modules_to_save=["embed_tokens", "lm_head"]),
             "embedding": dict(modules_to_save=["embed_tokens"]), "plain": {}}
    gpt2 = site.work / "small-gpt2"
    GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=64)).save_pretrained(gpt2)
    for tie in (False, "gpt2", True):
        base = gpt2 if tie == "gpt2" else site.save(f"small-{tie}", tie_word_embeddings=tie)
        if tie is True:  # else the file lacks the new rows of lm_head, and peft draws them
            kinds["adapted"] = dict(target_modules=["q_proj", "embed_tokens"])
            kinds["both"] = dict(trainable_token_indices={"embed_tokens": [61, 60], "lm_head": [61, 60]})
        for kind, options in kinds.items() if tie != "gpt2" else [("adapted", dict(target_modules=["c_attn", "wte"]))]:
            torch.manual_seed(4)
            model = load(base)
            model.resize_token_embeddings(62)
            model = get_peft_model(model, LoraConfig(**{"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **options}))
            with torch.no_grad():
                for value in model.parameters():
                    if value.requires_grad:
                        value.add_(torch.randn_like(value) * 0.1)
            adapter, merged = site.work / f"grown-{tie}-{kind}", site.work / f"grown-{tie}-{kind}-merged"
            model.save_pretrained(adapter, save_embedding_layers=False if kind == "both" else "auto")
            theirs = load(base)
            theirs.resize_token_embeddings(62)  # with other values
            theirs = PeftModel.from_pretrained(theirs, adapter)
            site.trireme("adapter", "merge", "--model", base, "--adapter", adapter, "--output", merged)
            difference = (logits(load(merged), ids) - logits(theirs, ids)).abs().max()
            assert difference < 1e-5, (tie, kind, difference)
    adapter = site.work / "grown-True-tokens"
    site.trireme("adapter", "show", adapter, says="62 rows of model.embed_tokens, 1,984 parameters, 2 rows trained")
    # A run with a rate of 0 that starts from it keeps it.
    site.run("train_llama", "--config", site.work / "tied-base.yaml", "--set", f"model.path={base}", "--set", f"lora.adapter={adapter}", "--set",
             "model.vocab_size=62", "--set", "optimizer.lr=0", "--set", "output.dir=from-grown")
    grown = load(base)
    grown.resize_token_embeddings(62)
    kept = PeftModel.from_pretrained(grown, site.work / "from-grown" / "adapter")
    site.trireme("adapter", "merge", "--model", base, "--adapter", adapter, "--output", merged, "--force")
    assert (logits(load(merged), ids) - logits(kept, ids)).abs().max() < 1e-5
    # Peft reads the tied matrix twice, the output matrix last.
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors["base_model.model.lm_head.token_adapter.base_layer.weight"][3] += 1
    save_file(tensors, path)
    site.trireme("adapter", "merge", "--model", base, "--adapter", adapter, "--output", merged, "--force", code=4, says="rows of lm_head other than")


def check_rows_step(site, config, resized, name, tie, tokens):
    """The first step of the rows that resize-vocab added is that of peft's trainable_token_indices. B is zero then, so A plays no part."""
    out = site.work / f"{name}-step"
    site.run("train_llama", "--config", config, "--set", f"model.path={resized}", "--set", f"output.dir={out}", "--set", "train.max_steps=1", "--set",
                    "optimizer.eps=1e-3", "--set", "optimizer.weight_decay=0", "--set", "optimizer.grad_clip=0", says=["rows 60 to 63 were added"])
    rows = list(range(60, 64))
    theirs = get_peft_model(load(resized), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], trainable_token_indices=rows if tie else {"embed_tokens": rows, "lm_head": rows}))
    optimizer = torch.optim.AdamW([p for p in theirs.parameters() if p.requires_grad], lr=1e-2, betas=(0.9, 0.999), eps=1e-3, weight_decay=0)
    sum(theirs(input_ids=row[None], labels=row[None]).loss for row in tokens).div(len(tokens)).backward()
    optimizer.step()
    theirs.save_pretrained(site.work / f"{name}-step-peft")
    want, got = (load_file(folder / "adapter_model.safetensors") for folder in (site.work / f"{name}-step-peft", out / "adapter"))
    compared = [key for key in got if "trainable_tokens" in key]
    assert len(compared) == (1 if tie else 2)
    for key in compared:
        assert torch.allclose(got[key], want[key], rtol=1e-4, atol=1e-6), (key, got[key] - want[key])
    PeftModel.from_pretrained(load(resized), out / "adapter")
    # Merged: the trained rows are in the model, which still says which ones were added.
    site.trireme("adapter", "merge", "--model", resized, "--adapter", out / "adapter", "--output", site.work / f"{name}-step-merged")
    merged = load(site.work / f"{name}-step-merged")
    for key in compared:
        assert torch.equal(merged.get_parameter("lm_head.weight" if "lm_head" in key else "model.embed_tokens.weight")[60:], got[key]), key
    assert json.loads((site.work / f"{name}-step-merged" / "config.json").read_text())["trireme_added_rows"] == {"first": 60}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        site = Site(args.bin, work)
        base = site.save("base")
        check_adapter_fields(site, base)
        check_other_base(site, base)
        check_force(site, base)
        check_config(site)
        check_unused_and_tied(site)
        with_tokenizer = check_special_pieces(site)
        check_resize(site, base, with_tokenizer)
        check_training(site, base)
        check_resized_adapters(site)
    print("ok")


if __name__ == "__main__":
    main()
