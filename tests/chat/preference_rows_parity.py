#!/usr/bin/env python3
"""`trireme data preference` against TRL's DPOTrainer and KTOTrainer: prompt, chosen and rejected ids of pairs in chat form and as plain texts, with explicit and
implicit prompts, cut at max_length; pairs that are dropped; input formats; packed rows. Exit code 77 = skipped.

usage: preference_rows_parity.py --tools PROGRAM"""
import argparse
import datetime
import json
import logging
import os
import random
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
warnings.filterwarnings("ignore")
try:
    import datasets
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
    from trl.trainer.dpo_trainer import DataCollatorForPreference
except ImportError as error:
    print(f"SKIPPED: {error}; scripts/setup.sh installs what this test needs")
    sys.exit(77)

import chat_rows_parity as chat
import chat_templates

datasets.disable_progress_bars()
logging.disable(logging.WARNING)
SEQ = 192


def pairs(count, seed=5):
    """prompt, chosen and rejected as lists of messages."""
    rng = random.Random(seed)
    text = lambda most=20: " ".join(rng.choices(chat.WORDS, k=rng.randrange(1, most)))
    for i in range(count):
        prompt = [{"role": "system", "content": text()}] if i % 3 == 0 else []
        for turn in range(2 * rng.randrange(0, 2) + 1):
            prompt.append({"role": "assistant" if turn % 2 else "user", "content": text(60 if i % 17 == 0 else 12)})
        answer = lambda: [{"role": "assistant", "content": text(70 if i % 11 == 0 else 12)}]
        chosen, rejected = answer(), answer()
        if i % 7 == 0:  # more than one message after the prompt
            chosen += [{"role": "user", "content": text()}, *answer()]
        if i % 5 == 0:  # answers that begin alike
            rejected[0]["content"] = chosen[0]["content"][:5] + rejected[0]["content"]
        yield {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def implicit(pair):
    return {name: pair["prompt"] + pair[name] for name in ("chosen", "rejected")}


def trl_sequences(tokenizer, rows, max_length, mode="keep_start"):
    """What DPOTrainer trains on: for each pair that it keeps ids and completion mask of chosen and rejected."""
    trainer = object.__new__(DPOTrainer)
    trainer._tokenizer = tokenizer
    config = DPOConfig(output_dir="unused", max_length=max_length, truncation_mode=mode, use_cpu=True, bf16=False, report_to=[])
    dataset = trainer._prepare_dataset(datasets.Dataset.from_list(rows), tokenizer, config, "train")
    collate = DataCollatorForPreference(pad_token_id=0, max_length=max_length, truncation_mode=mode)
    for example in dataset:
        batch = collate([example])
        both = []
        for ids, there, mask in zip(batch["input_ids"], batch["attention_mask"], batch["completion_mask"]):
            length = int(there.sum())
            both.append((tuple(ids[:length].tolist()), tuple(mask[:length].tolist())))
        yield tuple(both)


def our_sequences(path):
    """The same of our rows; the first token of a sequence is never a target."""
    found = []
    for row in np.load(path, allow_pickle=True):
        starts = list(row["seq_start_id"]) + [len(row["input_ids"])]
        sequences = [(tuple(map(int, row["input_ids"][a:b])), tuple(map(int, row["loss_mask"][a:b]))) for a, b in zip(starts, starts[1:])]
        if len(sequences) % 2:
            assert not any(sequences.pop()[1]), "padding with targets"
        for (chosen, one), (rejected, two) in zip(sequences[::2], sequences[1::2]):
            assert set(one) <= {0, 1} and set(two) <= {0, 2} and 1 in one and 2 in two
            found.append(((chosen, one), (rejected, tuple(value // 2 for value in two))))
    return found


def run(args, *arguments, expect=0):
    done = subprocess.run([args.tools, "data", "preference", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == expect, f"exit code {done.returncode}, expected {expect}: {done.stderr}\n{done.stdout}"
    return done.stdout + done.stderr


def make(args, work, folder, rows, *extra, name="pairs.jsonl", length=SEQ, most=None):
    (work / "pairs.npy").unlink(missing_ok=True)
    if name.endswith(".jsonl"):
        (work / name).write_text("\n".join(json.dumps(row) for row in rows))
    output = run(args, "--model", folder, "--input", work / name, "--output", work / "pairs.npy", "--seq-length", length, "--max-length", most or length // 2, "--one-per-row", *extra)
    return our_sequences(work / "pairs.npy"), output


def first_difference(ours, theirs):
    return len(ours), len(theirs), next(((i, a, b) for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)


def without_first(sequences):
    """TRL's mask has the first token of a sequence, which nothing predicts, where a cut or an empty prompt leaves it."""
    return [tuple((ids, (0, *mask[1:])) for ids, mask in pair) for pair in sequences]


def check_chats(args, work):
    tokens = count = dropped = 0
    for kind, name, template in (("llama3", "llama3", chat_templates.LLAMA3), ("qwen2", "qwen2.5", chat_templates.QWEN25), ("qwen2", "chatml", chat_templates.CHATML)):
        folder = work / name
        tokenizer = chat.write_model(folder, kind, template)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        rows = list(pairs(120))
        expected = without_first(trl_sequences(tokenizer, rows, SEQ // 2))
        for given in (rows, [implicit(row) for row in rows], [{"prompt": "a text that TRL's maybe_extract_prompt ignores", **implicit(row)} for row in rows[:9]]):
            ours, output = make(args, work, folder, given)
            want = expected if len(given) == len(rows) else without_first(trl_sequences(tokenizer, rows[:9], SEQ // 2))
            assert ours == want, (name, first_difference(ours, want))
        dropped += len(rows) - len(expected)
        assert f"dropped {len(rows) - len(expected)} pairs whose prompt fills --max-length, the first: " in output or len(given) < len(rows)
        ends = without_first(trl_sequences(tokenizer, rows, SEQ // 2, "keep_end"))
        ours, _ = make(args, work, folder, rows, "--truncation-mode", "keep_end")
        assert ours == ends, (name, first_difference(ours, ends))
        whole = [pair for pair in without_first(trl_sequences(tokenizer, rows, None)) if max(len(ids) for ids, _ in pair) <= SEQ // 2]
        ours, output = make(args, work, folder, rows, "--truncation-mode", "drop")
        assert ours == whole and "that are too long, the first: " in output, (name, first_difference(ours, whole))
        # Packed: the same pairs, each whole in a row.
        run(args, "--model", folder, "--input", work / "pairs.jsonl", "--output", work / "packed.npy", "--seq-length", 3 * SEQ, "--max-length", SEQ // 2)
        packed = our_sequences(work / "packed.npy")
        assert sorted(packed) == sorted(expected) and len(np.load(work / "packed.npy", allow_pickle=True)) < len(expected) // 2
        run(args, "--model", folder, "--input", work / "pairs.jsonl", "--output", work / "packed.h5", "--seq-length", 3 * SEQ, "--max-length", SEQ // 2)
        tokens += sum(len(ids) for pair in expected for ids, _ in pair)
        count += len(expected)
    print(f"chat form: {count} pairs, {tokens} tokens equal, {dropped} dropped by both")


def check_texts(args, work):
    """Plain texts: EOS after the answers, what the tokenizer puts before a text, a prompt of common characters."""
    folder = work / "texts"
    chat.write_model(folder, "llama3", "")
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.post_processor = TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", made.token_to_id("<|begin_of_text|>"))])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}))  # no template
    tokenizer = chat.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token="<|begin_of_text|>", eos_token="<|eot_id|>", pad_token="<|eot_id|>")
    assert tokenizer("a").input_ids[0] == tokenizer.bos_token_id, "the tokenizer writes no BOS before a text"
    rng = random.Random(8)
    text = lambda: " ".join(rng.choices(chat.WORDS, k=rng.randrange(2, 15)))
    rows = [{"prompt": text() + " ", "chosen": text(), "rejected": text() + ("<|eot_id|>" if i % 4 == 0 else "")} for i in range(60)]
    expected = without_first(trl_sequences(tokenizer, rows, SEQ // 2))
    ours, output = make(args, work, folder, rows)
    assert ours == expected, first_difference(ours, expected)
    assert "whose answers begin inside the prompt" in output, output
    shared = [{name: row["prompt"] + row[name] for name in ("chosen", "rejected")} for row in rows]
    shared += [{"chosen": "Größe", "rejected": "Grüße"}, {"chosen": "The sky is blue", "rejected": "The sky is"}, {"chosen": "ab", "rejected": "cd"}, {"chosen": "x é", "rejected": "x è"}]
    expected = without_first(trl_sequences(tokenizer, shared, SEQ // 2))
    ours, _ = make(args, work, folder, shared)
    assert ours == expected, first_difference(ours, expected)
    print(f"plain texts: {len(rows) + len(shared)} pairs equal")


def check_inputs(args, work):
    """Parquet, a JSON list, tools and variables; what is refused, and how it is named."""
    folder = work / "fields"
    tokenizer = chat.write_model(folder, "qwen2", chat.REASONS)
    tokenizer.pad_token = tokenizer.eos_token
    rows = list(pairs(20, 3))
    want, _ = make(args, work, folder, rows)
    (work / "list.json").write_text(json.dumps(rows))
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), work / "pairs.parquet", row_group_size=6)
    for name in ("list.json", "pairs.parquet"):
        assert make(args, work, folder, rows, name=name)[0] == want, name
    extras = [{**row, "tools": chat.TOOLS, "chat_template_kwargs": {"enable_thinking": False}} for row in rows]
    ours, expected = make(args, work, folder, extras, length=4 * SEQ)[0], without_first(trl_sequences(tokenizer, extras, 2 * SEQ))
    assert ours == expected != want, first_difference(ours, expected)
    assert make(args, work, folder, rows, "--variable", "enable_thinking=false")[0] == make(args, work, folder, [{**row, "chat_template_kwargs": {"enable_thinking": False}} for row in rows])[0]

    # Questions as LLaMA-Factory has them.
    question, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    system = {"role": "system", "content": "be brief"}
    asked = {"instruction": "look", "input": "here", "chosen": "I see", "rejected": "I do not"}
    messages = {"prompt": [{"role": "user", "content": "look\nhere"}], "chosen": [{**answer, "content": "I see"}], "rejected": [{**answer, "content": "I do not"}]}
    assert make(args, work, folder, [asked])[0] == make(args, work, folder, [messages])[0]
    assert make(args, work, folder, [{**messages, "system": "be brief"}])[0] == make(args, work, folder, [{**asked, "system": "be brief"}])[0] == make(args, work, folder, [{**messages, "prompt": [system, *messages["prompt"]]}])[0]
    texts = {"prompt": "Why is it so?", "chosen": "good", "rejected": "bad"}
    beside = {"history": [], "messages": [], "input": 0, "question": "it", "instruction": "", "system": None}
    assert make(args, work, folder, [texts | beside])[0] == make(args, work, folder, [texts])[0]
    # Equal answers are kept, as by TRL, and told; a role of another case is refused.
    ours, output = make(args, work, folder, [messages, {**messages, "rejected": messages["chosen"]}])
    assert len(ours) == 2 and "note: 1 pair with equal answers, kept as TRL keeps them" in output, output
    assert "equal answers" not in make(args, work, folder, [messages])[1]
    (work / "caps.jsonl").write_text(json.dumps({**messages, "chosen": [{**answer, "role": "Assistant"}]}))
    output = run(args, "--model", folder, "--input", work / "caps.jsonl", "--output", work / "caps.npy", "--seq-length", SEQ, expect=3)
    assert "caps.jsonl:1: a message has the role 'Assistant'" in output, output
    # Weights, calls, reasoning and parts of answers; pictures beside them.
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}
    for row, says in (({**messages, "chosen": [{**answer, "weight": 0}]}, 'an answer has "weight" 0'), ({**messages, "rejected": [{**answer, "loss": False}]}, 'an answer has "weight" 0'),
                      ({**messages, "chosen": [call]}, "writes nothing of a call of 'f'"), ({**messages, "images": ["a.png"]}, "'images' is filled")):
        (work / "bad.jsonl").write_text("\n".join(map(json.dumps, [messages, row])))
        options = ("--model", work / "chatml", "--input", work / "bad.jsonl", "--output", work / "bad.npy", "--seq-length", SEQ)
        output = run(args, *options, expect=3)
        assert f"bad.jsonl:2: " in output and says in output, (says, output)
        assert "from 1 pair" in run(args, *options, "--skip-refused")
    output = make(args, work, work / "chatml", [{name: [{**m, "reasoning_content": "because"} if m["role"] == "assistant" else m for m in messages[name]] for name in messages}])[1]
    assert "the first: " + str(work / "pairs.jsonl") + ":1: the template writes nothing of the assistant's reasoning: because" in output, output
    parts = {name: [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages[name]] for name in messages}
    assert make(args, work, folder, [parts])[0] == make(args, work, folder, [messages])[0]
    assert "pairs.jsonl: not read: other of 1 row\n" in make(args, work, folder, [messages, {**messages, "other": 1}])[1]
    # A column that is not needed may have values that JSON has not.
    odd = pa.Table.from_pylist(rows).append_column("question", pa.array([datetime.datetime(2024, 1, 1)] * len(rows)))
    pyarrow.parquet.write_table(odd, work / "pairs.parquet", row_group_size=6)
    assert make(args, work, folder, rows, name="pairs.parquet")[0] == want
    # One message as an answer, with the conversation beside it.
    turn = lambda message: {"from": "human" if message["role"] == "user" else "gpt", "value": message["content"]}
    one = [{"conversations": [turn(m) for m in row["prompt"]], "chosen": turn(row["chosen"][0]), "rejected": turn(row["rejected"][0])}
           for row in ({"prompt": [question], "chosen": [answer], "rejected": [{**answer, "content": "b"}]},)]
    assert make(args, work, folder, one)[0] == make(args, work, folder, [{"prompt": [question], "chosen": [answer], "rejected": [{**answer, "content": "b"}]}])[0]
    good = {"prompt": [question], "chosen": [answer], "rejected": [{**answer, "content": "b"}]}
    for bad, says in (({"chosen": [question, answer]}, "no field 'rejected'"), ({"messages": [question], "label": True}, "a judged answer, with --unpaired, has prompt, completion and label); the object has: messages, label. `trireme data chat` makes rows of conversations."),
                      ({"messages": [question, answer], "rejected_response": "x"}, "`trireme data preference` makes rows of pairs of answers, once the last of the messages is 'chosen' and rejected_response 'rejected'"), ({"messages": [question, answer], "rejected_messages": [question, answer]}, "`trireme data preference` makes rows of pairs of answers, once messages is named chosen and rejected_messages rejected"), ({**good, "prompt": []}, "'prompt' is an empty list"), ("[1]", "not a JSON object"),
                      ({**good, "chosen": "a"}, "are texts and lists of messages"), ({**good, "rejected": [{"content": "x"}]}, "message 1: neither role and content"),
                      ({"chosen": [question, answer], "rejected": [answer]}, "do not begin with the same message"), ({"chosen": [], "rejected": []}, "is an empty list"),
                      ({**good, "rejected": None}, "'rejected' is null"), ({"question": "q", "chosen": "I see", "rejected": "I do not"}, "'question' is not read beside texts"),
                      ({"input": "q", "chosen": "x", "rejected": "y"}, "'input' is not read beside texts"),
                      ({"trajectory": "q", "chosen": "x", "rejected": "y"}, "'trajectory' is not read beside texts"),
                      ({"prompt": [question], "chosen": [question, answer], "rejected": [question, {**answer, "content": "b"}]}, "which would be there twice"),
                      ({"system": "s", "prompt": "q", "chosen": "a", "rejected": "b"}, "'system' is not read beside texts")):
        lines = [good, bad if isinstance(bad, dict) else json.loads(bad)]
        (work / "bad.jsonl").write_text("\n".join(map(json.dumps, lines)))
        options = ("--model", folder, "--input", work / "bad.jsonl", "--output", work / "bad.npy", "--seq-length", 64)
        message = run(args, *options, expect=3)
        assert says in message and "bad.jsonl:2" in message and "--skip-refused" in message, (says, message)
        message = run(args, *options, "--skip-refused")
        assert "1 row of 64 tokens from 1 pair" in message and "dropped 1 pair that cannot be read, the first: " in message, message
    (work / "bad.jsonl").write_text("\n".join(json.dumps({"prompt": [question], "chosen": [], "rejected": [answer]}) for _ in range(2)))
    message = run(args, "--model", folder, "--input", work / "bad.jsonl", "--output", work / "bad.npy", "--seq-length", 64, expect=3)
    assert "no pair is left of 2: " in message, message
    (work / "bad.jsonl").write_text(json.dumps({"prompt": [question], "completion": [answer], "label": True}))
    message = run(args, "--unpaired", "--truncation-mode", "drop", "--max-length", 2, "--model", folder, "--input", work / "bad.jsonl", "--output", work / "bad.npy", "--seq-length", 64, expect=3)
    assert "no answer is left of 1: " in message, message
    for option, says in ((("--max-length", 64), "--max-length 64"), (("--truncation-mode", "cut"), "--truncation-mode: cut not in {keep_start,keep_end,drop}"), (("--valid-fraction", 0.5), "belong together")):
        assert says in run(args, "--model", folder, "--input", work / "pairs.jsonl", "--output", work / "bad.npy", "--seq-length", 64, *option, expect=2)
    # A pair of two answers that fit --max-length, but not the row together.
    ours, output = make(args, work, folder, rows, most=SEQ - 1)
    kept = [pair for pair in without_first(trl_sequences(tokenizer, rows, SEQ - 1)) if sum(len(ids) for ids, _ in pair) <= SEQ]
    assert ours == kept and len(kept) < len(rows) and "that are too long" in output, (len(ours), len(kept), output)
    run(args, "--model", folder, "--input", work / "pairs.jsonl", "--output", work / "train.npy", "--seq-length", SEQ, "--valid-output", work / "valid.npy", "--valid-fraction", 0.4)
    assert sorted(our_sequences(work / "train.npy") + our_sequences(work / "valid.npy")) == sorted(want) and len(our_sequences(work / "valid.npy")) > 0
    print("inputs, refusals and splits as described")


def check_judged(args, work):
    """Judged answers, and pairs as such: tokens and labels of KTOTrainer; in each row the answers rotated."""
    answers, most = 0, SEQ // 4
    for kind, template in (("llama3", chat_templates.LLAMA3), ("qwen2", chat_templates.CHATML)):
        folder = work / f"judged-{kind}"
        tokenizer = chat.write_model(folder, kind, template)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        both = list(pairs(90))
        singles = [{"prompt": row["prompt"], "completion": row["chosen" if i % 3 else "rejected"], "label": i % 2 == 0} for i, row in enumerate(both)]
        texts = [{"prompt": row["prompt"][-1]["content"] + " ", "completion": row["completion"][0]["content"], "label": row["label"]} for row in singles]
        short = [row for row in singles if len(row["completion"]) == 1]
        swift = [{"messages": row["prompt"] + row["completion"], "label": row["label"], "prompt": None} for row in short]
        for rows, given in ((singles, singles), (both, both), (texts, texts), (short, swift)):
            trainer = object.__new__(KTOTrainer)
            trainer._tokenizer, trainer.calculate_KL, trainer.desirable_weight, trainer.undesirable_weight = tokenizer, False, 1, 1
            config = KTOConfig(output_dir="unused", max_length=most, use_cpu=True, bf16=False, report_to=[])
            examples = [((tuple(one["prompt_ids"] + one["completion_ids"])[:most], len(one["prompt_ids"]), one["label"]), tuple(one["completion_ids"]))
                        for one in trainer._prepare_dataset(datasets.Dataset.from_list(rows), tokenizer, config, "train")]
            expected, whole = sorted(one for one, _ in examples), dict(examples)
            (work / "judged.jsonl").write_text("\n".join(map(json.dumps, given)))
            options = ("--unpaired", "--model", folder, "--input", work / "judged.jsonl", "--output", work / "judged.npy", "--seq-length", 3 * SEQ, "--max-length", most)
            output = run(args, *options)
            ours = []
            for row in np.load(work / "judged.npy", allow_pickle=True):
                starts = list(row["seq_start_id"]) + [len(row["input_ids"])]
                parts = [(tuple(map(int, row["input_ids"][a:b])), tuple(map(int, row["loss_mask"][a:b]))) for a, b in zip(starts, starts[1:])]
                if len(parts) % 2:
                    assert not any(parts.pop()[1]), "padding with targets"
                assert all(len(set(mask) - {0}) == 1 for _, mask in parts)
                cut = [(ids, next(t for t, value in enumerate(mask) if value), 1 in mask) for ids, mask in parts[::2]]
                for i, ((ids, mask), (own, prompt, label)) in enumerate(zip(parts[1::2], cut)):
                    # The whole completion of the one before, also where its own prompt left no room for all of it.
                    assert ids == (own[:prompt] + whole[cut[i - 1]])[:most] and mask == (0,) * prompt + (3,) * (len(ids) - prompt), (ids, mask)
                    ours.append((own, prompt, label))
            assert sorted(ours) == expected, first_difference(sorted(ours), expected)
            assert f"from {len(ours)} answers" in output, output
            answers += len(ours)
    # One file may hold both kinds; a table has the columns of the other kind as nulls.
    mixed = [both[0], *singles[1:4], both[4]]
    (work / "mixed.jsonl").write_text("\n".join(map(json.dumps, mixed)))
    pyarrow.parquet.write_table(pa.Table.from_pylist([{"label": None, "completion": None, "chosen": None, "rejected": None} | row for row in mixed]), work / "mixed.parquet")
    written = []
    for name in ("mixed.jsonl", "mixed.parquet"):
        run(args, "--unpaired", "--model", folder, "--input", work / name, "--output", work / "mixed.npy", "--seq-length", 3 * SEQ)
        written.append([(list(row["input_ids"]), list(row["loss_mask"])) for row in np.load(work / "mixed.npy", allow_pickle=True)])
        (work / "mixed.npy").unlink()
    assert written[0] == written[1], written
    good = {"prompt": "a", "completion": "b", "label": True}
    for bad, says in (({**good, "label": 2}, "'label' is 2, expected true or false"), ({"prompt": "a", "completion": "b"}, "no field 'label'"), ({**good, "prompt": []}, "is a text"),
                      ({"prompt": "a", "label": True}, "no field 'completion'"), ({"messages": both[0]["prompt"] * 2, "label": True}, "the last of 'messages' is no answer of the assistant"), ({"messages": [], "label": True}, "no field 'prompt' (a judged answer has prompt, completion and label); the object has: messages, label"), ({**good, "completion": None}, "'completion' is null"), ({**good, "prompt": None}, "'prompt' is null")):
        (work / "judged.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(bad))
        message = run(args, *options, expect=3)
        assert says in message and "judged.jsonl:2" in message, (says, message)
    (work / "judged.jsonl").write_text(json.dumps({**good, "label": 1}))  # as TRL takes it
    assert "1 answer alone in a row" in run(args, *options)
    (work / "judged.jsonl").write_text("\n".join(map(json.dumps, [good, {"prompt": "c", "completion": "d", "label": False}])))
    assert re.search(r"first undesirable answer, to the prompt .*c: .*d", run(args, *options))
    assert "--one-per-row is for pairs" in run(args, *options, "--one-per-row", expect=2)
    assert "--max-length" in run(args, *options[:-1], 2 * SEQ, expect=2)
    print(f"judged: {answers} answers equal")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        os.environ["HF_DATASETS_CACHE"] = f"{work}/cache"
        for check in (check_chats, check_texts, check_inputs, check_judged):
            check(args, Path(work))


if __name__ == "__main__":
    main()
