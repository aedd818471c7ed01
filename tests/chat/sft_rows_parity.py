#!/usr/bin/env python3
"""`trireme data chat` with other fields than messages: prompt and completion against TRL's SFTTrainer, as messages and as texts; Alpaca's fields; a loss on
the last answer; files mixed by weight; Parquet and a JSON list; what is refused. Exit code 77 = skipped.

usage: sft_rows_parity.py --tools PROGRAM"""
import argparse
import json
import logging
import os
import random
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
warnings.filterwarnings("ignore")
try:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer
except ImportError as error:
    print(f"SKIPPED: {error}; scripts/setup.sh installs what this test needs")
    sys.exit(77)

import chat_rows_parity as chat
import chat_templates

datasets.disable_progress_bars()
logging.disable(logging.WARNING)
SEQ = chat.SEQ


def trl_sequences(tokenizer, rows):
    """Ids and completion mask of what SFTTrainer trains on; nothing predicts the first token."""
    trainer = object.__new__(SFTTrainer)
    trainer._tokenizer = tokenizer
    trainer.chat_template, trainer.completion_only_loss = None, True
    config = SFTConfig(output_dir="unused", max_length=None, use_cpu=True, bf16=False, report_to=[])
    for row in trainer._prepare_dataset(datasets.Dataset.from_list(rows), tokenizer, config, False, None, "train"):
        yield tuple(row["input_ids"]), (0, *(int(label != -100) for label in row["labels"][1:]))


def ours(args, work, folder, *extra, name="sets.jsonl", rows=None, files=None):
    if rows is not None:
        (work / name).write_text("\n".join(json.dumps(row) for row in rows))
    (work / "sets.npy").unlink(missing_ok=True)
    output = chat.run(args, "--model", folder, "--input", *(files or [work / name]), "--output", work / "sets.npy", "--seq-length", SEQ, "--one-per-row", *extra)
    return chat.read_rows(work / "sets.npy"), output


def check_completions(args, work):
    rng, counts = random.Random(8), []
    text = lambda most=12: " ".join(rng.choices(chat.WORDS, k=rng.randrange(1, most)))
    for name, template in (("llama3", chat_templates.LLAMA3), ("qwen2", chat_templates.QWEN25)):
        folder = work / f"completion-{name}"
        tokenizer = chat.write_model(folder, name, template)
        rows = []
        for i in range(60):
            prompt = [{"role": "system", "content": text()}] if i % 3 == 0 else []
            for turn in range(2 * rng.randrange(0, 3) + 1):
                prompt.append({"role": "assistant" if turn % 2 else "user", "content": text()})
            rows.append({"prompt": prompt, "completion": [{"role": "assistant", "content": text()}]})
        expected = [(ids[:SEQ], mask[:SEQ]) for ids, mask in trl_sequences(tokenizer, rows) if any(mask[:SEQ])]
        found, _ = ours(args, work, folder, rows=rows)
        assert found == expected, next((a, b) for a, b in zip(found, expected) if a != b)
        (work / "sets.json").write_text(json.dumps(rows))
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), work / "sets.parquet", row_group_size=7)
        assert ours(args, work, folder, name="sets.json")[0] == expected and ours(args, work, folder, name="sets.parquet")[0] == expected
        counts.append(len(found))
    # Texts: BOS before them where the tokenizer puts one, EOS behind; the tokens of prompt and completion may run into each other.
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain = work / "plain-texts"
    plain.mkdir()
    raw.post_processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", raw.token_to_id("<|endoftext|>"))])
    raw.save(str(plain / "tokenizer.json"))
    (plain / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(plain / "tokenizer.json"), eos_token="<|im_end|>")
    texts = [{"prompt": text(), "completion": rng.choice([" ", "", "\n"]) + text()} for _ in range(80)]
    texts += [{"prompt": "the qu", "completion": "ick brown"}, {"prompt": "", "completion": "x"}, {"prompt": "a", "completion": "b<|im_end|>"}]
    expected = list(trl_sequences(tokenizer, texts))
    found, output = ours(args, work, plain, rows=texts)
    assert found == expected, next((a, b) for a, b in zip(found, expected) if a != b)
    assert "template none" in output, output
    print(f"prompt and completion: {sum(counts)} conversations and {len(found)} texts as TRL tokenises them")


def check_alpaca(args, work):
    folder = work / "completion-qwen2"
    rows = [{"instruction": "Add.", "input": "1, 2", "output": "3"}, {"instruction": "Hi", "input": "", "output": "Hello"}, {"instruction": "Hi", "output": "Hello", "input": None},
            {"instruction": "More?", "output": "No.", "system": "Be short.", "history": [["a", "b"], ["c", "d"]]}, {"instruction": "", "input": "only", "output": "x"}]
    user, assistant = lambda text: {"role": "user", "content": text}, lambda text: {"role": "assistant", "content": text}
    chats = [[user("Add.\n1, 2"), assistant("3")], [user("Hi"), assistant("Hello")], [user("Hi"), assistant("Hello")],
             [{"role": "system", "content": "Be short."}, user("a"), assistant("b"), user("c"), assistant("d"), user("More?"), assistant("No.")], [user("only"), assistant("x")]]
    found, _ = ours(args, work, folder, rows=rows)
    expected, _ = ours(args, work, folder, rows=[{"messages": messages} for messages in chats])
    assert found == expected and len(found) == 5
    # The last answer alone.
    for generation in (False, True):
        model = work / f"last-{generation}"
        tokenizer = chat.write_model(model, "qwen2", chat_templates.GENERATION if generation else chat_templates.QWEN25)
        all_of, _ = ours(args, work, model, rows=[{"messages": messages} for messages in chats])
        last, output = ours(args, work, model, "--loss", "last", rows=[{"messages": messages} for messages in chats])
        assert "of the last answer alone" in output, output
        for messages, (ids, one), (same, two) in zip(chats, all_of, last, strict=True):
            runs = [i for i in range(len(one)) if one[i] and not one[i - 1]]
            assert ids == same and len(runs) == sum(m["role"] == "assistant" for m in messages)
            assert two == (0,) * runs[-1] + one[runs[-1]:], (tokenizer.decode(ids), one, two)
    weighted = [{"messages": [user("a"), assistant("b"), user("c"), assistant("d") | {"weight": 0}]}] * 2 + [{"messages": chats[0]}]
    found, output = ours(args, work, folder, "--loss", "last", rows=weighted)
    assert len(found) == 1 and "dropped 2 conversations without an answer" in output, output
    print("Alpaca's fields and the last answer: equal to messages")


def check_mixing(args, work):
    folder = work / "completion-qwen2"
    for name, count in (("one", 200), ("two", 50), ("three", 30)):
        (work / f"{name}.jsonl").write_text("\n".join(json.dumps({"prompt": f"{name} {i}", "completion": " yes"}) for i in range(count)))
    files = [work / f"{name}.jsonl" for name in ("one", "two", "three")]
    plain, output = ours(args, work, folder, files=files)
    assert len(plain) == 280 and "two.jsonl: 50 conversations" in output, output
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    mixed, output = ours(args, work, folder, "--weight", "0.25", "1", "2.5", files=files)
    texts = [tokenizer.decode(ids) for ids, _ in mixed]
    count = {name: sum(text.startswith(name + " ") for text in texts) for name in ("one", "two", "three")}
    assert 30 < count["one"] < 70 and count["two"] == 50 and 65 < count["three"] < 85, count
    assert len({text for text in texts if text.startswith("one ")}) == count["one"] and f"one.jsonl: {count['one']} conversations" in output, output
    assert ours(args, work, folder, "--weight", "0.25", "1", "2.5", files=files)[0] == mixed
    valid = work / "mixed-valid.npy"
    ours(args, work, folder, "--weight", "1", "3", "3", "--valid-output", valid, "--valid-fraction", "0.3", files=files)
    rows = chat.read_rows(valid)
    assert 50 < len(rows) == len(set(rows)), "validation has each at most once"
    print(f"mixing by weight: {count} of 200, 50, 30")


def check_refusals(args, work):
    folder = work / "completion-qwen2"
    bare = work / "bare"
    bare.mkdir()
    (bare / "tokenizer.json").write_text((folder / "tokenizer.json").read_text().replace("<|endoftext|>", "<|other|>"))
    (bare / "tokenizer_config.json").write_text("{}")
    message = [{"role": "user", "content": "a"}]
    cases = [({"prompt": "a"}, "nor prompt and completion, nor instruction and output"), ({"instruction": "a", "input": "b"}, "nor instruction and output"),
             ({"prompt": message, "completion": "x"}, "are a text and a list"), ({"prompt": "x", "completion": message}, "are a text and a list"),
             ({"prompt": 3, "completion": 4}, "'prompt' is a JSON number, expected a list"), ({"prompt": message, "completion": [3]}, "message 1: not an object"),
             ({"instruction": 1, "output": "x"}, '"instruction" is a JSON number, expected a text'), ({"instruction": "x", "output": ["y"]}, '"output" is a JSON array'),
             ({"instruction": "x", "output": None}, '"output" is a JSON null, expected a text'),
             ({"instruction": "x", "output": "y", "history": [["a"]]}, '"history" holds what is no pair'), ({"instruction": "x", "output": "y", "history": 1}, '"history" is a JSON number'),
             ({"prompt": message, "completion": []}, "no conversation is left of 1")]
    for row, says in cases:
        (work / "bad.jsonl").write_text(json.dumps(row))
        output = chat.run(args, "--model", folder, "--input", work / "bad.jsonl", "--output", work / "bad.npy", "--seq-length", SEQ, expect=3)
        assert says in output and ("bad.jsonl:1" in output or "no conversation is left" in says), (row, output)
    (work / "good.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}))
    good = ("--model", folder, "--input", work / "good.jsonl", "--output", work / "bad.npy", "--seq-length", SEQ)
    for extra, says in ((("--weight", 1, 2), "--weight: 2 for 1 file"), (("--weight", 0), "--weight 0: expected a number above 0"), (("--weight", -1), "--weight -1"),
                        (("--weight", "inf"), "--weight"), (("--loss", "first"), "--loss: first not in {all,last}")):
        assert says in chat.run(args, *good, *extra, expect=2), says
    assert "has no EOS token" in chat.run(args, "--model", bare, *good[2:], expect=3)
    (work / "chat.jsonl").write_text(json.dumps({"messages": message + [{"role": "assistant", "content": "b"}]}))
    assert "no chat template" in chat.run(args, "--model", bare, "--input", work / "chat.jsonl", *good[4:], expect=3)
    print(f"{len(cases) + 7} inputs refused with their reason")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        check_completions(args, work)
        check_alpaca(args, work)
        check_mixing(args, work)
        check_refusals(args, work)


if __name__ == "__main__":
    main()
