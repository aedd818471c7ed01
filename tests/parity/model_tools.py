"""`trireme init-model`, `adapter merge`, `adapter show` and `generate` against transformers, peft and sentencepiece.

usage: model_tools.py TRIREME_BINARY WORK_DIRECTORY      (exit 77: a package is missing)
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from needed import needed

with needed():
    import sentencepiece
    import torch
    import transformers
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaTokenizer

try:
    import google.protobuf  # noqa: F401  transformers reads tokenizer.model with it
    TOKENIZER_CHECKS = True
except ImportError:
    TOKENIZER_CHECKS = False
    print("without the protobuf package transformers cannot open tokenizer.model: that check is skipped")

TOOL, WORK = sys.argv[1], Path(sys.argv[2])
TEXT = "the quick brown fox jumps over the lazy dog while seven wizards brew a strong green potion at midnight".split()
SHAPE = ["--hidden-size", "48", "--layers", "2", "--heads", "4", "--kv-heads", "2", "--intermediate-size", "80", "--max-positions", "64"]


def trireme(*arguments, code=0, says=""):
    result = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True)
    assert result.returncode == code, f"{arguments}: exit {result.returncode}, not {code}\n{result.stdout}{result.stderr}"
    assert says in result.stdout + result.stderr, f"{arguments}: no '{says}' in\n{result.stdout}{result.stderr}"
    return result.stdout


def make_tokenizer():
    lines = [" ".join(TEXT[i % len(TEXT)] for i in range(k, k + 9)) for k in range(400)]
    (WORK / "text.txt").write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(WORK / "text.txt"), model_prefix=str(WORK / "tokenizer"), vocab_size=330, model_type="bpe", byte_fallback=True,
        bos_id=1, eos_id=2, unk_id=0, pad_id=-1, minloglevel=2)
    return WORK / "tokenizer.model"


def encode(directory, text):
    return [1] + sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model")).encode(text)


def init(tokenizer, name, *extra):
    trireme("init-model", *SHAPE, "--vocab-size", 336, "--tokenizer", tokenizer, "--output", WORK / name, *extra)
    return WORK / name


def check_init(tokenizer):
    directory = init(tokenizer, "base")
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    assert model.dtype == torch.float32 and model.config.num_key_value_heads == 2 and model.config.head_dim == 12
    weight = model.model.layers[1].mlp.gate_proj.weight
    assert abs(weight.std().item() - 0.02) < 0.002 and abs(weight.mean().item()) < 0.002
    assert (model.model.norm.weight == 1).all()
    assert not torch.equal(model.model.layers[0].mlp.gate_proj.weight, weight)
    if TOKENIZER_CHECKS:
        sentence = "the lazy wizards jump"
        theirs, want = AutoTokenizer.from_pretrained(directory)(sentence)["input_ids"], encode(directory, sentence)
        assert theirs == want, (theirs, want)
    # The same seed gives the same file, another one does not.
    again, other = init(tokenizer, "again", "--seed", "0"), init(tokenizer, "other", "--seed", "1")
    same = load_file(again / "model.safetensors")
    assert all(torch.equal(value, same[key]) for key, value in load_file(directory / "model.safetensors").items())
    assert not torch.equal(load_file(other / "model.safetensors")["lm_head.weight"], same["lm_head.weight"])
    half = init(tokenizer, "half", "--dtype", "bf16", "--tie")
    tied = AutoModelForCausalLM.from_pretrained(half, dtype="auto")
    assert tied.dtype == torch.bfloat16 and tied.config.tie_word_embeddings
    assert "lm_head.weight" not in load_file(half / "model.safetensors")

    trireme("init-model", "--preset", "llama2-7B", "--output", WORK / "x", code=2, says="Did you mean 'llama2-7b'?")
    trireme("init-model", *SHAPE, "--output", WORK / "x", code=2, says="--vocab-size")
    trireme("init-model", *SHAPE, "--vocab-size", 336, "--kv-heads", 3, "--output", WORK / "x", code=2, says="")
    trireme("init-model", *SHAPE, "--vocab-size", 100, "--tokenizer", tokenizer, "--output", WORK / "x", code=2, says="--vocab-size 330")
    trireme("init-model", *SHAPE, "--vocab-size", 336, "--output", directory, code=73, says="already holds a model")
    trireme("model", "resize-vocab", "--model", directory, "--vocab-size", 2**33, "--output", WORK / "x", code=2, says="at most 2147483647")
    return directory


def make_adapter(base, name, targets, zero=False, scale=0.05):
    torch.manual_seed(5)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=4, lora_alpha=8, target_modules=targets))
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "lora_B" in key and not zero:
                value.copy_(torch.randn_like(value) * scale)
    model.save_pretrained(WORK / name)
    return WORK / name


def check_merge(base):
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapter = make_adapter(base, "adapter", targets)
    shown = trireme("adapter", "show", adapter, says="r 4, alpha 8")
    assert "14 modules" in shown and "down_proj" in shown, shown
    trireme("adapter", "merge", "--model", base, "--adapter", adapter, "--output", WORK / "merged", says="merged - base")
    trireme("adapter", "merge", "--model", base, "--adapter", adapter, "--output", adapter, "--force", code=73, says="holds an adapter")
    reference = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).merge_and_unload()
    merged = AutoModelForCausalLM.from_pretrained(WORK / "merged")
    ours, theirs = merged.state_dict(), reference.state_dict()
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert torch.allclose(ours[key], value, rtol=1e-5, atol=1e-7), key
    for name in ["tokenizer.model", "tokenizer_config.json", "generation_config.json"]:
        assert (WORK / "merged" / name).read_bytes() == (base / name).read_bytes(), name

    trireme("adapter", "merge", "--model", base, "--adapter", adapter, "--output", WORK / "merged", code=73, says="already holds")
    trireme("adapter", "merge", "--model", base, "--adapter", adapter, "--output", base, code=73)
    zero = make_adapter(base, "zero", ["q_proj"], zero=True)
    trireme("adapter", "merge", "--model", base, "--adapter", zero, "--output", WORK / "m2", code=4, says="changes nothing")
    assert not (WORK / "m2").exists()
    # An update below the resolution of bf16 weights is lost, with a warning; fp32 keeps it.
    faint = make_adapter(WORK / "half", "faint", ["q_proj"], scale=2e-6)
    half = ["adapter", "merge", "--model", WORK / "half", "--adapter", faint]
    trireme(*half, "--output", WORK / "m3", code=4, says="--dtype fp32")
    trireme(*half, "--output", WORK / "m6", "--dtype", "f32", says="100.0 %")
    # So are trained rows of the vocabulary.
    rows = get_peft_model(AutoModelForCausalLM.from_pretrained(WORK / "half", dtype=torch.float32), LoraConfig(r=4, target_modules=["q_proj"], trainable_token_indices=[5, 6]))
    with torch.no_grad():
        for key, value in rows.named_parameters():
            if "lora_B" in key or "trainable_tokens" in key:
                value.add_(torch.randn_like(value) * 0.05)
    rows.save_pretrained(WORK / "rows")
    trireme("adapter", "merge", "--model", WORK / "half", "--adapter", WORK / "rows", "--output", WORK / "m7", "--dtype", "fp32")
    trained = next(value for key, value in load_file(WORK / "rows" / "adapter_model.safetensors").items() if "trainable_tokens" in key)
    assert not torch.equal(trained, trained.bfloat16().float()) and torch.equal(load_file(WORK / "m7" / "model.safetensors")["model.embed_tokens.weight"][5:7], trained)
    trireme("adapter", "merge", "--model", base, "--adapter", adapter, "--output", WORK / "m4", "--dtype", "bf16", says="bound")
    assert AutoModelForCausalLM.from_pretrained(WORK / "m4", dtype="auto").dtype == torch.bfloat16
    # An adapter of another shape.
    wide = WORK / "wide"
    shutil.copytree(adapter, wide)
    tensors = load_file(wide / "adapter_model.safetensors")
    key = next(k for k in tensors if "down_proj.lora_A" in k)
    tensors[key] = torch.zeros(4, 81)
    save_file(tensors, wide / "adapter_model.safetensors", metadata={"format": "pt"})
    trireme("adapter", "merge", "--model", base, "--adapter", wide, "--output", WORK / "m5", code=4, says="down_proj")
    return adapter


def check_adapter_tokenizer(base, adapter):
    """What a trainer saves beside an adapter, a chat template alone or a tokenizer with another EOS, takes the place of the base's."""
    own, merged = WORK / "own", WORK / "own-merged"
    shutil.copytree(adapter, own)
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    (own / "chat_template.jinja").write_text(template)
    merge = ["adapter", "merge", "--model", base, "--adapter", own, "--output", merged, "--force"]

    def check_same(*arguments):
        arguments = ["generate", "--prompt", "<|im_start|>the quick <|im_end|>brown", "--max-new-tokens", 8, *arguments, "--model"]
        assert trireme(*arguments, base, "--adapter", own) == trireme(*arguments, merged)

    trireme(*merge, says=f"the chat template is {own}")
    assert (merged / "chat_template.jinja").read_text() == template
    for name in ("tokenizer.model", "tokenizer_config.json", "generation_config.json"):
        assert (merged / name).read_bytes() == (base / name).read_bytes(), name
    check_same("--chat")
    if not TOKENIZER_CHECKS:
        return
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = template
    names = [Path(path).name for path in tokenizer.save_pretrained(own) if Path(path).exists()]
    trireme(*merge, says=f"those of {own}; its EOS, {tokenizer.eos_token_id}, ends texts")
    for name in names:
        assert (merged / name).read_bytes() == (own / name).read_bytes(), name
    assert "tokenizer.model" in names or not (merged / "tokenizer.model").exists()
    model = AutoModelForCausalLM.from_pretrained(merged)
    assert model.config.eos_token_id == tokenizer.eos_token_id and model.generation_config.eos_token_id == [tokenizer.eos_token_id, 2]
    check_same("--chat")
    check_same()
    # An EOS that the base's files name changes nothing in them.
    tokenizer.eos_token = "</s>"
    tokenizer.save_pretrained(own)
    trireme(*merge, says=f"those of {own}\n")
    assert (merged / "generation_config.json").read_bytes() == (base / "generation_config.json").read_bytes()
    # One with tokens that the model has no rows for, and one that Trireme cannot read.
    tokenizer.add_tokens([f"<{i}>" for i in range(99)])
    tokenizer.save_pretrained(own)
    trireme(*merge, says=f"has ids up to {len(tokenizer) - 1}, and the merged model has {model.config.vocab_size} rows")
    (own / "tokenizer.json").write_text("{}")
    trireme(*merge, says="Trireme cannot read it")


def check_generate(base, adapter):
    prompt, count = "the quick brown", 12
    ids = torch.tensor([encode(base, prompt)])
    plain = AutoModelForCausalLM.from_pretrained(base)
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    penalised, texts = WORK / "penalised", []
    shutil.copytree(base, penalised)
    generation = json.loads((base / "generation_config.json").read_text())
    (penalised / "generation_config.json").write_text(json.dumps({**generation, "repetition_penalty": 1.3}))
    for model, directory, extra in [(plain, base, []), (adapted, base, ["--adapter", adapter]), (AutoModelForCausalLM.from_pretrained(penalised), penalised, [])]:
        want = model.generate(input_ids=ids, max_new_tokens=count, do_sample=False, bad_words_ids=[[k] for k in range(330, 336)])
        text = trireme("generate", "--model", directory, "--prompt", prompt, "--max-new-tokens", count, *extra)
        decoded = AutoTokenizer.from_pretrained(base).decode(want[0], skip_special_tokens=True) if TOKENIZER_CHECKS else text
        assert text.strip() == decoded.strip(), (text, decoded)
        texts.append(text)
    assert len(set(texts)) == 3, texts
    draws = [trireme("generate", "--model", base, "--prompt", prompt, "--max-new-tokens", count, "--temperature", 1, "--seed", seed)
             for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    trireme("generate", "--model", base, "--prompt", prompt, "--max-new-tokens", 100, code=2, says="64 positions")


def check_families(tokenizer):
    """init-model, resize-vocab, adapter merge and generate for the families that are no Llama."""
    for preset, targets, fields in (
            ("mistral-7b-v0.1", ["q_proj", "o_proj"], dict(sliding_window=5)),
            ("qwen2-7b", ["k_proj", "down_proj"], {}),
            ("phi3-mini-4k", ["qkv_proj", "o_proj", "gate_up_proj"], dict(sliding_window=6)),
            ("olmo2-7b", ["q_proj", "down_proj"], {}),
            ("smollm3-3b", ["v_proj", "up_proj"], dict(no_rope_layers=[0, 1])),
            ("granite3.3-2b", ["k_proj", "gate_proj"], {}),
            ("gemma3-1b", ["q_proj", "o_proj", "down_proj"], dict(sliding_window=5, layer_types=["sliding_attention", "full_attention"])),
            ("gpt2", ["c_attn", "c_proj", "c_fc"], {})):
        heads = [] if preset == "gpt2" else ["--kv-heads", "2"]
        directory = WORK / preset
        trireme("init-model", "--preset", preset, "--hidden-size", 48, "--layers", 2, "--heads", 4, *heads, "--intermediate-size", 80,
                "--max-positions", 64, "--vocab-size", 336, "--dtype", "f32", "--tokenizer", tokenizer, "--output", directory)
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        model.eval()
        for name, value in model.named_parameters():  # norms start as the identity
            assert value.dim() > 1 or "bias" in name or (value == (0 if preset.startswith("gemma") else 1)).all(), name
        if preset == "gpt2":
            block = model.transformer.h[1]
            assert abs(block.attn.c_attn.weight.std().item() - 0.02) < 0.001 and abs(block.mlp.c_proj.weight.std().item() - 0.01) < 0.0005
            assert block.attn.c_attn.weight.shape == (48, 144) and (block.ln_1.weight == 1).all() and (block.attn.c_attn.bias == 0).all()

        resized = WORK / (preset + "-resized")
        trireme("model", "resize-vocab", "--model", directory, "--output", resized, "--vocab-size", 340)
        larger = AutoModelForCausalLM.from_pretrained(resized)
        assert larger.config.vocab_size == 340 and larger.config.model_type == model.config.model_type
        old, new = model.state_dict(), larger.state_dict()
        assert old.keys() == new.keys()
        for key, value in old.items():
            assert torch.equal(new[key][:value.shape[0]], value), key

        adapter = make_adapter(directory, preset + "-adapter", targets)
        trireme("adapter", "merge", "--model", directory, "--adapter", adapter, "--output", WORK / (preset + "-merged"), says="merged - base")
        theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(directory), adapter).merge_and_unload().state_dict()
        ours = AutoModelForCausalLM.from_pretrained(WORK / (preset + "-merged")).state_dict()
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert torch.allclose(ours[key], value, rtol=1e-5, atol=1e-7), key

        ids = torch.tensor([encode(directory, "the quick brown")])
        want = model.generate(input_ids=ids, max_new_tokens=8, do_sample=False, bad_words_ids=[[k] for k in range(330, 336)])
        text = trireme("generate", "--model", directory, "--prompt", "the quick brown", "--max-new-tokens", 8)
        decoded = LlamaTokenizer.from_pretrained(directory).decode(want[0], skip_special_tokens=True) if TOKENIZER_CHECKS else text
        assert text.strip() == decoded.strip(), (text, decoded)
    trireme("init-model", "--preset", "gpt2", "--kv-heads", 2, "--output", WORK / "x", code=2, says="as many key/value heads as heads")


def check_presets():
    """transformers builds every preset's config.json, with the parameters that we count."""
    listed = subprocess.run([TOOL, "init-model", "--help"], capture_output=True, text=True).stdout.split("Shape: ")[1].split("--config")[0]
    names = [name for name in listed.replace("\n", " ").replace(" ", "").split(",") if name and not name.startswith("bert")]
    assert len(names) > 40, listed
    for name in names:
        directory = WORK / "presets" / name
        result = subprocess.run([TOOL, "init-model", "--preset", name, "--config-only", "--output", directory], capture_output=True, text=True)
        assert result.returncode == 0, (name, result.stderr)
        assert sorted(path.name for path in directory.iterdir()) == ["config.json", "generation_config.json"], name
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(directory))
        count = sum(parameter.numel() for parameter in model.parameters())
        said = f"{count:,} parameters"
        assert said in result.stdout + result.stderr, (name, said, result.stderr)


def check_bert():
    """Both kinds of BERT, with Hugging Face's initial values."""
    (WORK / "words").mkdir()
    (WORK / "words/vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox"]) + "\n")
    directory = WORK / "bert"
    trireme("init-model", "--preset", "bert-tiny", "--vocab-size", 300, "--tokenizer", WORK / "words", "--output", directory)
    assert transformers.BertTokenizer.from_pretrained(directory).tokenize("the fox") == ["the", "fox"]
    config = json.loads((directory / "config.json").read_text())
    config["architectures"] = ["BertForMaskedLM"]
    (WORK / "masked.json").write_text(json.dumps(config))
    trireme("init-model", "--config", WORK / "masked.json", "--dtype", "bf16", "--output", WORK / "masked")
    for path, kind in ((directory, transformers.BertForPreTraining), (WORK / "masked", transformers.BertForMaskedLM)):
        model, seen = kind.from_pretrained(path, output_loading_info=True, dtype=torch.float32)
        assert not any(seen[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), seen
        for name, value in model.state_dict().items():
            if name.endswith("bias"):
                assert not value.any(), name
            elif "LayerNorm" in name:
                assert (value == 1).all(), name
            elif value.is_floating_point():
                assert abs(value.std().item() / 0.02 - 1) < 0.1 and abs(value.mean().item()) < 0.003, (name, value.std(), value.mean())
    trireme("init-model", "--preset", "bert-base", "--heads", 5, "--output", WORK / "x", code=2, says="768 is no multiple of 5 heads")
    trireme("init-model", "--preset", "bert-tiny", "--output", directory, code=73, says="already holds a model")


if __name__ == "__main__":
    torch.set_num_threads(1)
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    tokenizer_file = make_tokenizer()
    base_directory = check_init(tokenizer_file)
    adapter_directory = check_merge(base_directory)
    check_adapter_tokenizer(base_directory, adapter_directory)
    check_generate(base_directory, adapter_directory)
    check_families(tokenizer_file)
    check_presets()
    check_bert()
    assert json.loads((base_directory / "generation_config.json").read_text())["eos_token_id"] == 2
    print("ok")
