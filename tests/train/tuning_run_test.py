#!/usr/bin/env python3
"""What a person sees while tuning: answers to eval.prompts, chats, noise on embeddings, with train_llama and the tools as a user starts them.
Exit code 77 = skipped."""
import glob
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from run_site import RunSite, main, needed, np

with needed():
    import torch
    from tokenizers import AddedToken
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).parent.parent / "tokenizer"))
import byte_level  # noqa: E402

SEQ = 96
CHATML = """{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
PROMPTS = ["Hello", "What is two and two?", "Grüße!"]


class Site(RunSite):
    program = "train_llama"

    def __init__(self, args, work):
        super().__init__(args, work)
        torch.manual_seed(3)
        self.write_model(f"{work}/base")
        vocab = AutoTokenizer.from_pretrained(f"{work}/base").vocab_size
        rng = np.random.default_rng(5)
        np.save(f"{work}/train.npy", rng.integers(0, vocab, size=(40, SEQ)).astype(np.int32))
        np.save(f"{work}/valid.npy", rng.integers(0, vocab, size=(7, SEQ)).astype(np.int32))
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""model: {{path: base}}
data: {{train: train.npy, valid: valid.npy, seq_length: {SEQ}}}
batch: {{global_batch_size: 8, micro_batch_size: 2}}
optimizer: {{lr: 1.0e-2}}
train: {{max_steps: 4}}
eval: {{every_samples: 16}}
output: {{dir: run}}
""")

    def write_model(self, folder, template=CHATML, **more):
        """A small Llama with a byte-level tokenizer and a chat template."""
        os.makedirs(folder)
        specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        tokenizer = byte_level.train("qwen2", ["Hello there, what is two and two? It is four. Good day to you."] * 4, 300)
        tokenizer.add_special_tokens([AddedToken(text, special=True) for text in specials])
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=specials[0], chat_template=template)
        fast.save_pretrained(folder)
        config = LlamaConfig(vocab_size=len(fast), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                             max_position_embeddings=512, initializer_range=0.2, bos_token_id=None, eos_token_id=fast.eos_token_id, **more)
        model = LlamaForCausalLM(config)
        model.generation_config.update(eos_token_id=fast.eos_token_id, repetition_penalty=1.3)
        model.save_pretrained(folder)

    def samples(self, run):
        return [(line["step"], line["prompt"], line["text"]) for line in self.metrics(run, "sample")]


def answer(model, tokenizer, messages, count=24, ends=None, **more):
    """What transformers generates greedily; `ends`: where an answer ends, beside EOS the template's end of a turn if they are not given."""
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")["input_ids"]
    ends = ends or [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")]
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, eos_token_id=ends, pad_token_id=0, **more)
    return tokenizer.decode(out[0][ids.shape[1]:], skip_special_tokens=True, clean_up_tokenization_spaces=False)


PROMPTED = [f"eval.prompts=[{', '.join(json.dumps(p, ensure_ascii=False) for p in PROMPTS)}]", "eval.max_new_tokens=24"]


def prompts(site):
    work = site.work
    site.train("output.dir=plain")
    done = site.train(*PROMPTED, "output.dir=told", "logging.tensorboard=true")
    assert "eval.prompts: 3 prompts, template" in done.stderr + done.stdout and "<|im_end|> (" in done.stderr + done.stdout, done.stderr
    # The same numbers and bytes as without.
    for event, keys in (("train", ("loss", "grad_norm")), ("eval", ("loss",))):
        for a, b in zip(site.metrics("plain", event), site.metrics("told", event), strict=True):
            assert [a[key] for key in keys] == [b[key] for key in keys], (a, b)
    assert open(f"{work}/plain/model/model.safetensors", "rb").read() == open(f"{work}/told/model/model.safetensors", "rb").read()
    # The last answers are those of the exported model in transformers.
    tokenizer, model = AutoTokenizer.from_pretrained(f"{work}/told/model"), AutoModelForCausalLM.from_pretrained(f"{work}/told/model", dtype=torch.float32).eval()
    samples = site.samples("told")
    assert [(step, prompt) for step, prompt, _ in samples] == [(step, prompt) for step in (2, 4) for prompt in PROMPTS], samples
    assert samples[:3] != samples[3:]
    for _, prompt, text in samples[3:]:
        assert text == answer(model, tokenizer, [{"role": "user", "content": prompt}]), (prompt, text)
    # The page and TensorBoard have them.
    site.tool("report", "told", "--output", "told.html")
    page = open(f"{work}/told.html").read()
    assert "Answers to the prompts" in page and "What is two and two?" in page and "step 2" in page
    events = b"".join(open(path, "rb").read() for path in glob.glob(f"{work}/told/tensorboard/events*"))
    assert events.count(b"samples/1") == 2 and events.count(b"samples/3") == 2 and "Grüße!".encode() in events
    site.tool("report", "plain", "--output", "plain.html")
    assert "Answers to the prompts" not in open(f"{work}/plain.html").read()
    # Drawn with the same random numbers each time, whatever the passes.
    hot = [*PROMPTED, "eval.temperature=1.5", "optimizer.lr=0", "optimizer.weight_decay=0"]
    site.train(*hot, "output.dir=hot")
    first, second = site.samples("hot")[:3], site.samples("hot")[3:]
    assert [text for _, _, text in first] == [text for _, _, text in second] and first[0][2] != samples[0][2]
    site.train(*hot, "output.dir=other", "train.seed=99")
    assert site.samples("other")[:3] != first
    # With adapters, and where one prompt at a time fits into a row.
    site.train(*PROMPTED, "output.dir=lora", "lora.r=4", "lora.target_modules=[q_proj, v_proj]", "eval.max_new_tokens=60")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": PROMPTS[0]}], add_generation_prompt=True)
    assert len(ids["input_ids"] if hasattr(ids, "keys") else ids) + 60 < SEQ < 2 * 60
    site.tool("adapter", "merge", "--model", "base", "--adapter", "lora/adapter", "--output", "merged", "--dtype", "fp32")
    model = AutoModelForCausalLM.from_pretrained(f"{work}/merged", dtype=torch.float32).eval()
    for _, prompt, text in site.samples("lora")[3:]:
        assert text == answer(model, tokenizer, [{"role": "user", "content": prompt}], 60), (prompt, text)


def refusals(site):
    """What cannot be answered is refused before the first step."""
    def refused(says, *settings, code=2, **more):
        text = site.train(*settings, "output.dir=refused", expect=code, **more).stderr
        assert says in text, (says, text)

    refused("eval.prompts needs data.valid", *PROMPTED, "data.valid=[]", "eval.every_samples=null")
    refused("are more than the 96 tokens of a rank's row", *PROMPTED, "eval.max_new_tokens=90")
    refused("eval.temperature", *PROMPTED, "eval.temperature=-1")
    refused("eval.max_new_tokens", *PROMPTED, "eval.max_new_tokens=0")
    refused("eval.prompts", *PROMPTED, program="train_bert")
    refused("train.neftune_alpha", "train.neftune_alpha=-5")
    refused("train.neftune_alpha", "train.neftune_alpha=5", "train.objective=dpo")
    refused("preference.label_smoothing", "train.label_smoothing=0.1", "train.objective=dpo")
    refused("train.label_smoothing", "train.label_smoothing=1")
    refused("Did you mean 'label_smoothing'?", "train.label_smoothing_factor=0.1")
    os.rename(f"{site.work}/base/tokenizer.json", f"{site.work}/tokenizer.json")
    refused("has no tokenizer: put the model's", *PROMPTED)
    os.rename(f"{site.work}/tokenizer.json", f"{site.work}/base/tokenizer.json")
    template = Path(site.work, "base/chat_template.jinja")
    template.write_text("{% if %}")
    refused("chat_template.jinja:1:", *PROMPTED, code=3)
    template.write_text("{{ raise_exception('no chats') }}")
    refused("no chats", *PROMPTED, code=3)
    template.unlink()
    done = site.train(*PROMPTED, "output.dir=text", extra=["--dry-run"])
    assert "as they are, as the model has no chat template" in done.stdout + done.stderr, done.stdout
    done = site.train("data.train=mock", "data.valid=[]", "eval.every_samples=null", "output.dir=mock", "train.max_steps=1")
    assert "no rows to check" in done.stdout + done.stderr and "all 0 rows" not in done.stdout + done.stderr


def ranks(site):
    """The same answers on several ranks with sharded weights and shared rows, after a stop and a resume; a stop in the middle of the answers."""
    site.train(*PROMPTED, "output.dir=one")
    one = site.samples("one")
    for name, settings in (("full", ["parallel.policy=full"]), ("none", ["parallel.policy=none"]), ("context", ["parallel.context_size=2", "eval.max_new_tokens=24"])):
        prompted = [PROMPTED[0].replace("What is two and two?", "Two?")] + PROMPTED[1:] if name == "context" else PROMPTED
        site.train(*prompted, *settings, f"output.dir={name}", ranks=2)
        assert name == "context" or site.samples(name) == one, (name, site.samples(name), one)
        assert len(site.samples(name)) == 6
    # train.neftune_alpha: the noise follows the rows, not the ranks.
    losses = []
    for name, count, settings in (("a", 0, ["batch.micro_batch_size=8"]), ("b", 2, ["batch.micro_batch_size=1"]), ("c", 2, ["parallel.context_size=2"])):
        site.train("train.neftune_alpha=8", f"output.dir=noise-{name}", *settings, ranks=count)
        losses.append([line["loss"] for line in site.metrics(f"noise-{name}")])
    plain, evals = [line["loss"] for line in site.metrics("one")], [line["loss"] for line in site.metrics("noise-a", "eval")]
    assert np.allclose(losses[0], losses[1], rtol=2e-5) and np.allclose(losses[0], losses[2], rtol=2e-5) and abs(losses[0][0] - plain[0]) > 1e-3, (losses, plain)
    assert len(evals) == 2
    # A stop while the prompts are answered: the evaluation is repeated when the run goes on.
    long = ["eval.max_new_tokens=60", PROMPTED[0], "output.dir=stopped", "train.max_steps=6"]
    process = subprocess.Popen(site.command(*long), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("step 2/6"):
            time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            break
    stdout, stderr = process.communicate()
    assert process.returncode == 75, (process.returncode, stdout, stderr)
    site.train(*long)
    steps = [step for step, _, _ in site.samples("stopped")]
    assert steps == [2] * 3 + [4] * 3 + [6] * 3, (steps, stdout, stderr)
    assert [line["step"] for line in site.metrics("stopped", "eval")] == [2, 4, 6]


def chat(site):
    """`trireme chat` and `generate --chat` answer as transformers does, over several turns."""
    work = site.work
    tokenizer, model = AutoTokenizer.from_pretrained(f"{work}/base"), AutoModelForCausalLM.from_pretrained(f"{work}/base", dtype=torch.float32).eval()

    def talk(*arguments, text, expect=0):
        done = subprocess.run([f"{site.args.bin}/trireme", "chat", "--model", f"{work}/base", *map(str, arguments)], input=text, capture_output=True, text=True)
        assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
        return done

    done = talk("--max-new-tokens", 24, "--system", "Be short.", text="Hello\n\nWhat is two and two?\r\n")
    messages = [{"role": "system", "content": "Be short."}]
    expected = ""
    for question in ("Hello", "What is two and two?"):
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer(model, tokenizer, messages)})
        expected += messages[-1]["content"] + "\n"
    assert done.stdout == expected, (done.stdout, expected)
    assert "an answer ends at <|endoftext|> (" in done.stderr and "<|im_end|> (" in done.stderr, done.stderr
    assert talk(text="").stdout == ""
    one = site.tool("generate", "--chat", "--model", "base", "--prompt", "Hello", "--max-new-tokens", 24).stdout
    assert one == answer(model, tokenizer, [{"role": "user", "content": "Hello"}]) + "\n", one
    silent = site.tool("generate", "--chat", "--model", "base", "--system", "", "--prompt", "Hello", "--max-new-tokens", 24).stdout
    assert one != silent == answer(model, tokenizer, [{"role": "system", "content": ""}, {"role": "user", "content": "Hello"}]) + "\n", silent
    # A model that has learnt one thing: the answer, and the end of the turn.
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day."}], tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    np.save(f"{work}/learn.npy", np.array([(ids + [0] * SEQ)[:SEQ]] * 8, np.int32))
    site.train("data.train=learn.npy", "data.valid=learn.npy", "output.dir=learnt", "train.max_steps=30", "schedule.name=constant")
    assert site.tool("generate", "--chat", "--model", "learnt/model", "--prompt", "Hello", "--max-new-tokens", 24).stdout == "Good day.\n"
    # Refused: no template, wrong options, a template's refusal.
    refused = [(2, "are for --chat", "generate", "--prompt", "x", "--system", "y"), (2, "--max-new-tokens is 0", "chat", "--max-new-tokens", 0),
               (2, "--temperature is -1", "chat", "--temperature", -1), (2, "exceed the model's 512 positions", "generate", "--chat", "--prompt", "x", "--max-new-tokens", 512),
               (3, "no chat template", "chat", "--template-name", "none"), (2, "expected NAME=VALUE", "chat", "--variable", "x"),
               (2, "nested deeper than", "chat", "--variable", "x=" + "[" * 60000 + "]" * 60000)]
    for code, says, tool, *arguments in refused:
        done = site.tool(tool, "--model", "base", *arguments, expect=code)
        assert says in done.stderr, (says, done.stderr)
    Path(work, "base/chat_template.jinja").unlink()
    done = talk(text="Hello\n", expect=3)
    assert "no chat template" in done.stderr, done.stderr


def positions(site):
    """Dynamic scaling generates beyond max_position_embeddings, as transformers does; others are refused."""
    work = site.work
    site.write_model(f"{work}/dynamic", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    config = json.load(open(f"{work}/dynamic/config.json"))
    config["max_position_embeddings"] = 20
    json.dump(config, open(f"{work}/dynamic/config.json", "w"))
    tokenizer, model = AutoTokenizer.from_pretrained(f"{work}/dynamic"), AutoModelForCausalLM.from_pretrained(f"{work}/dynamic", dtype=torch.float32).eval()
    ids = tokenizer("Hello there, what is two", return_tensors="pt", add_special_tokens=False)["input_ids"]
    # Without a cache, whose earlier keys have the frequencies of a shorter text.
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40, pad_token_id=0, use_cache=False)
    expected = tokenizer.decode(out[0], skip_special_tokens=True, clean_up_tokenization_spaces=False) + "\n"
    ours = site.tool("generate", "--model", "dynamic", "--prompt", "Hello there, what is two", "--max-new-tokens", 40).stdout
    assert out.shape[1] > 25 and ours == expected, (ours, expected)
    done = site.tool("generate", "--model", "base", "--prompt", "Hello", "--max-new-tokens", 600, expect=2)
    assert "exceed the model's 512 positions" in done.stderr


SMALL = ["--layers", 2, "--hidden-size", 64, "--intermediate-size", 96, "--heads", 4, "--vocab-size", 320, "--max-positions", 512, "--dtype", "fp32"]
FAMILIES = {"llama3.2-1b": [], "mistral-7b-v0.3": [], "qwen2-0.5b": [], "qwen3-0.6b": ["--head-dim", 32], "olmo2-1b": [], "smollm3-3b": [],
            "granite3.3-2b": [], "gemma3-270m": ["--head-dim", 32], "phi3-mini-4k": []}


def families(site):
    """The way of docs/howto/tune-chat.md with a small model of each family: tokens, template, rows, LoRA with the best kept, merge, a chat as in transformers."""
    work = site.work
    Path(work, "chatml.jinja").write_text(CHATML.replace("im_start", "turn").replace("im_end", "done"))
    tokenizer = byte_level.train("qwen2", ["Hello there, what is two and two? It is four. Good day to you."] * 4, 300)
    os.makedirs(f"{work}/tokenizer")
    tokenizer.save(f"{work}/tokenizer/tokenizer.json")
    chats = [{"instruction": question, "output": answer} for question, answer in (("Hello", "Good day."), ("What is two and two?", "It is four."))] * 12
    Path(work, "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    for preset, more in FAMILIES.items():
        folder = f"{work}/{preset}"
        site.tool("init-model", "--preset", preset, *SMALL, "--kv-heads", 4 if preset.startswith(("phi3", "olmo2")) else 2, *more, "--tokenizer", "tokenizer", "--output", f"{preset}/base")
        site.tool("model", "resize-vocab", "--model", f"{preset}/base", "--add-token", "<|turn|>", "--add-token", "<|done|>", "--eos-token", "<|done|>",
                  "--chat-template", "chatml.jinja", "--output", f"{preset}/chat")
        site.tool("data", "chat", "--model", f"{preset}/chat", "--input", "chats.jsonl", "--seq-length", 64, "--output", f"{preset}/train.npy", "--valid-output", f"{preset}/valid.npy",
                  "--valid-fraction", 0.2)
        modules = "[qkv_proj, o_proj, gate_up_proj, down_proj]" if preset.startswith("phi3") else "[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]"
        site.train(f"model.path={folder}/chat", f"data.train={folder}/train.npy", f"data.valid={folder}/valid.npy", "data.seq_length=64", "batch.global_batch_size=2",
                   "lora.r=8", "lora.alpha=16", "lora.dropout=0", f"lora.target_modules={modules}", "optimizer.lr=1e-2", "train.max_steps=24", "train.loss=token_mean",
                   "eval.every_samples=16", "eval.prompts=[Hello]", "eval.max_new_tokens=12", f"output.dir={folder}/run", "output.keep_best=true")
        site.tool("adapter", "merge", "--model", f"{preset}/chat", "--adapter", f"{preset}/run/best/adapter", "--output", f"{preset}/merged", "--dtype", "fp32")
        losses = [line["loss"] for line in site.metrics(f"{preset}/run")]
        tokenizer, model = AutoTokenizer.from_pretrained(f"{folder}/merged"), AutoModelForCausalLM.from_pretrained(f"{folder}/merged", dtype=torch.float32).eval()
        ends = model.generation_config.eos_token_id
        assert tokenizer.eos_token == "<|done|>" and ends[0] == tokenizer.eos_token_id == model.config.eos_token_id, (preset, ends)
        for question in ("Hello", "What is two and two?"):
            theirs = answer(model, tokenizer, [{"role": "user", "content": question}], 16, ends, use_cache=False)
            ours = site.tool("generate", "--chat", "--model", f"{preset}/merged", "--prompt", question, "--max-new-tokens", 16).stdout
            assert ours == theirs + "\n", (preset, ours, theirs)
        assert losses[-1] < losses[0], (preset, losses)
        print(f"{preset}: loss {losses[0]:.3f} to {losses[-1]:.3f}, answers {ours!r}", flush=True)


main({"families": families, "prompts": prompts, "refusals": refusals, "ranks": ranks, "chat": chat, "positions": positions}, Site)
