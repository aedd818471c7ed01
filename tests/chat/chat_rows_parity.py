#!/usr/bin/env python3
"""`trireme data chat` against transformers: token ids and assistant masks of conversations with the tokenizers of Llama 3, Qwen2 and Llama 2 and their
kinds of templates, packed rows, input formats, messages of errors; --bin: from raw conversations to an adapter. Exit code 77 = skipped.

usage: chat_rows_parity.py --tools PROGRAM [--bin DIRECTORY]"""
import argparse
import datetime
import gzip
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet
    import sentencepiece
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast
except ImportError as error:
    print(f"SKIPPED: {error}; scripts/setup.sh installs what this test needs")
    sys.exit(77)

sys.path.insert(0, str(Path(__file__).parent.parent / "tokenizer"))
import byte_level  # noqa: E402
import chat_templates  # noqa: E402

SEQ = 256
WORDS = "the quick brown fox jumps over a lazy dog Grüße e\u0301tude 世界 \U0001f600 12345 it's x=1; \n \n\n \t don't <|eot_id|>".split(" ")


def conversations(count, seed=3):
    rng = random.Random(seed)
    def text():
        return " ".join(rng.choices(WORDS, k=rng.randrange(1, 25)))
    for i in range(count):
        messages = [{"role": "system", "content": text()}] if i % 3 == 0 else []
        for turn in range(2 * rng.randrange(1, 4)):
            messages.append({"role": "assistant" if turn % 2 else "user", "content": text()})
        yield messages


def run(args, *arguments, expect=0):
    done = subprocess.run([args.tools, "data", "chat", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == expect, f"exit code {done.returncode}, expected {expect}: {done.stderr}\n{done.stdout}"
    return done.stdout + done.stderr


def read_rows(path):
    """(ids, mask) of each sequence that has targets."""
    sequences = []
    for row in np.load(path, allow_pickle=True):
        starts = list(row["seq_start_id"]) + [len(row["input_ids"])]
        assert starts[0] == 0 and len(row["input_ids"]) == SEQ == len(row["loss_mask"])
        for begin, end in zip(starts, starts[1:]):
            mask = list(map(int, row["loss_mask"][begin:end]))
            if any(mask):
                sequences.append((tuple(map(int, row["input_ids"][begin:end])), tuple(mask)))
            else:  # padding
                assert end == SEQ and len(set(row["input_ids"][begin:end])) == 1
    return sequences


def write_model(folder, kind, template):
    """A model directory with a byte-level tokenizer; returns it as transformers loads it."""
    folder.mkdir(parents=True)
    texts = [m["content"] for c in conversations(200) for m in c]
    specials = {"llama3": ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"], "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]}[kind]
    tokenizer = byte_level.train(kind, texts, 700)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"llama3": {"bos_token": specials[0], "eos_token": specials[1]}, "qwen2": {"bos_token": None, "eos_token": specials[2], "pad_token": specials[0]}}[kind]
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "chat_template": template}))
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), chat_template=template, **{k: v for k, v in names.items() if v})


def prefix_mask(tokenizer, messages):
    """The mask by the differences of rendered prefixes, on the offsets of the whole text."""
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = [0] * len(encoded["input_ids"])
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        begin = len(tokenizer.apply_chat_template(messages[:i], tokenize=False, add_generation_prompt=True))
        end = len(tokenizer.apply_chat_template(messages[:i + 1], tokenize=False))
        for t, (a, b) in enumerate(encoded["offset_mapping"]):
            if a < end and b > begin:
                mask[t] = 1
    return tuple(encoded["input_ids"]), tuple(mask)


def generation_mask(tokenizer, messages):
    out = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    return tuple(out["input_ids"]), tuple(out["assistant_masks"])


def check_parity(args, work):
    tokens = targets = count = 0
    for kind, name, template, mask in (("llama3", "llama3", chat_templates.LLAMA3, prefix_mask), ("qwen2", "qwen2.5", chat_templates.QWEN25, prefix_mask),
                                       ("qwen2", "chatml", chat_templates.GENERATION, generation_mask)):
        folder = work / name
        tokenizer = write_model(folder, kind, template)
        chats = list(conversations(150))
        (work / "chat.jsonl").write_text("\n".join(json.dumps({"messages": c, "id": 1}, ensure_ascii=i % 2 == 0) for i, c in enumerate(chats)))
        output = run(args, "--model", folder, "--input", work / "chat.jsonl", "--output", work / "rows.npy", "--seq-length", SEQ, "--long", "drop")
        assert output.count("chat.jsonl: not read: id of 150 rows\n") == 1 and "has no token" not in output and "writes nothing" not in output, output
        expected = [mask(tokenizer, c) for c in chats]
        kept = [(ids, m) for ids, m in expected if len(ids) <= SEQ]
        ours = read_rows(work / "rows.npy")
        assert sorted(ours) == sorted(kept), (name, output, next((a, b) for a, b in zip(sorted(ours), sorted(kept)) if a != b))
        tokens += sum(len(ids) for ids, _ in ours)
        targets += sum(sum(m) for _, m in ours)
        count += len(ours)
        # One conversation a row, cut at its end, in order.
        run(args, "--model", folder, "--input", work / "chat.jsonl", "--output", work / "one.npy", "--seq-length", SEQ, "--one-per-row")
        cut = [(ids[:SEQ], m[:SEQ]) for ids, m in expected if any(m[:SEQ])]
        assert read_rows(work / "one.npy") == cut
    print(f"byte-level: {count} conversations, {tokens} tokens, {targets} targets equal")


def check_sentencepiece(args, work):
    """Llama 2: special tokens are cut out, the rest is sentencepiece's."""
    folder = work / "llama2"
    folder.mkdir()
    (work / "text.txt").write_text("\n".join(m["content"] for c in conversations(300) for m in c))
    sentencepiece.SentencePieceTrainer.train(input=str(work / "text.txt"), model_prefix=str(folder / "tokenizer"), vocab_size=400, model_type="bpe", byte_fallback=True,
                                             normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": chat_templates.LLAMA2}]}))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    chats = [[{"from": {"user": "human", "assistant": "gpt"}.get(m["role"], m["role"]), "value": m["content"]} for m in c] for c in conversations(80, 9)]
    (work / "share.json").write_text(json.dumps([{"conversations": c} for c in chats]))
    table = pa.table({"conversations": chats})
    pyarrow.parquet.write_table(table, work / "share.parquet", row_group_size=7)
    expected = []
    for chat in chats:
        ids, mask = [], []
        turns = [m["value"] for m in chat if m["from"] != "system"]
        if len(turns) < len(chat):
            turns[0] = f"<<SYS>>\n{chat[0]['value']}\n<</SYS>>\n\n{turns[0]}"
        for question, answer in zip(turns[::2], turns[1::2]):
            # The text between <s> and </s> is one for sentencepiece: its pieces, without the space put before it, are its bytes.
            prompt = f"[INST] {question.strip()} [/INST]"
            pieces = processor.encode(f"{prompt} {answer.strip()} ")
            ends = np.cumsum([1 if processor.is_byte(p) else len(processor.id_to_piece(p).replace("\u2581", " ").encode()) for p in pieces]) - 1
            ids += [1, *pieces, 2]
            mask += [0, *(int(end > len(prompt.encode())) for end in ends), 1]
        expected.append((tuple(ids), tuple(mask)))
    def compare(name):
        (work / "two.npy").unlink(missing_ok=True)
        run(args, "--model", folder, "--input", work / name, "--output", work / "two.npy", "--seq-length", SEQ, "--one-per-row")
        cut = [(ids[:SEQ], m[:SEQ]) for ids, m in expected if any(m[:SEQ])]
        ours = read_rows(work / "two.npy")
        assert ours == cut, next((a, b) for a, b in zip(ours, cut) if a != b)
    compare("share.json")
    compare("share.parquet")
    # Files of Llama 1 name their tokens "", and a template may write them out.
    config = (folder / "tokenizer_config.json").read_text()
    literal = chat_templates.LLAMA2.replace("bos_token", "'<s>'").replace("eos_token", "'</s>'")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "", "eos_token": "", "unk_token": "", "chat_template": literal}))
    compare("share.json")
    (folder / "tokenizer_config.json").write_text(config)
    check_recipe_page(args, folder, chats)
    check_markers(args, work, folder)
    print(f"sentencepiece: {len(expected)} conversations equal, from a JSON list and from Parquet")


CHATML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
INSTRUCTION = "{% for m in messages %}{% if m.role == 'user' %}{{ '### Instruction:\\n' + m.content + '\\n' }}{% elif m.role == 'assistant' %}{{ '### Response:\\n' + m.content + '\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}"


def check_markers(args, work, folder):
    """Markers of a template that the tokenizer spells; roles that a template does not write."""
    question, answer = {"role": "user", "content": "what is it <|im_end|>"}, {"role": "assistant", "content": "the fox"}
    tool = {"role": "tool", "content": "a <b> 12"}
    def rows(template, *conversations, expect=0, model=folder):
        (work / "marked.jinja").write_text(template)
        (work / "marked.jsonl").write_text("\n".join(json.dumps({"messages": c}) for c in conversations))
        return run(args, "--model", model, "--input", work / "marked.jsonl", "--output", work / "marked.npy", "--seq-length", SEQ, "--template", work / "marked.jinja", expect=expect)
    gemma = CHATML.replace("<|im_start|>", "<start_of_turn>").replace("<|im_end|>", "<end_of_turn>")
    thinks = INSTRUCTION.replace("'### Response:\\n' + m.content", "'### Response:\\n<think>\\n</think>' + m.content")
    for template, names in ((CHATML, "<|im_start|>, <|im_end|>"), (gemma, "<start_of_turn>, <end_of_turn>")):
        output = rows(template, [question, answer])
        assert f"has no token for {names} of the template {work / 'marked.jinja'}: each becomes several tokens" in output and "no special token ends an answer" in output and "--add-token" in output, output
    zephyr = "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
    output = rows(zephyr, [question, answer])  # as Zephyr's own, which has no tokens for them
    assert "has no token for <|user|>, <|assistant|>, <|system|>" in output and "ends an answer" not in output, output
    for template in (chat_templates.LLAMA2, INSTRUCTION, thinks, chat_templates.LLAMA2.replace("bos_token", "'<s>'").replace("eos_token", "'</s>'")):
        assert "has no token" not in rows(template, [question, answer]), template
    added = work / "added"
    added.mkdir()
    for file in ("tokenizer.model", "tokenizer_config.json"):
        (added / file).write_bytes((folder / file).read_bytes())
    (added / "added_tokens.json").write_text(json.dumps({"<|im_start|>": 400, "<|im_end|>": 401}))
    assert "has no token" not in rows(CHATML, [question, answer], model=added)
    # The end of an answer is none of those in the model's files, as in base models with the template of a chat.
    base = work / "base"
    write_model(base, "qwen2", CHATML)
    def ends(tokenizer, config, generation=None):
        (base / "tokenizer_config.json").write_text(json.dumps({"eos_token": tokenizer}))
        for file, ids in (("config.json", config), ("generation_config.json", generation)):
            (base / file).write_text(json.dumps({} if ids is None else {"eos_token_id": ids}))
        return rows(CHATML, [question, answer], model=base)
    other, end = (json.loads((base / "tokenizer.json").read_text())["added_tokens"][i]["id"] for i in (0, 2))
    says = f"the template ends an answer with <|im_end|>, which is no EOS of the tokenizer, config.json or generation_config.json of {base}"
    for files in (("<|endoftext|>", other, [other]), ("<|endoftext|>", None)):
        output = ends(*files)
        assert says in output and f"trireme model resize-vocab --model {base} --eos-token '<|im_end|>'" in output, output
    for files in (("<|im_end|>", other, other), ("<|endoftext|>", [other, end]), ("<|endoftext|>", other, [end, other])):
        assert says not in ends(*files), files
    (base / "config.json").unlink()
    assert says not in rows(CHATML, [question, answer], model=base)  # a tokenizer alone
    # What a template leaves out, what it writes in another way, roles that it names.
    output = rows(INSTRUCTION, [question, answer], [question, answer], [question, tool, answer], [tool, question, answer])
    assert f"2 conversations with a message, reasoning or tools that the template does not write as they are, the first: {work / 'marked.jsonl'}:3: the template writes nothing of tool: a <b> 12" in output, output
    output = rows(INSTRUCTION, [question, tool], expect=3)
    assert "without an answer of the assistant" in output and "the template writes nothing of" in output and "tool: a <b> 12" in output, output
    other = INSTRUCTION.replace("+ m.content +", "+ (m.content | tojson) +")
    assert "writes nothing" not in rows(other, [{**question, "content": "two\nlines"}, answer])
    for filter in ("upper", "replace('a', 'b')", "reverse"):
        assert "writes nothing" not in rows(INSTRUCTION.replace("+ m.content +", f"+ (m.content | {filter}) +"), [question, answer]), filter
    short = INSTRUCTION.replace("m.content + '\\n' }}{% endif %}", "m.content.split('</think>')[-1] + '\\n' }}{% endif %}")
    assert "writes nothing" not in rows(short, [question, {**answer, "content": "<think>so</think>the fox"}])
    # Calls, reasoning and tools that a template leaves out.
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "the", "arguments": {}}}]}
    output = rows(INSTRUCTION, [question, answer], [question, call, tool, answer], expect=3)
    assert f"marked.jsonl:2: {work / 'marked.jinja'} writes nothing of a call of 'the': give --template one that writes tool calls" in output, output
    calls = INSTRUCTION.replace("+ m.content + '\\n' }}{% endif %}", "+ m.content + '\\n' }}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% endif %}")
    assert calls != INSTRUCTION and "writes nothing" not in rows(calls, [question, call, answer])
    # Arguments as OpenAI has them, a text with JSON: quoted, as by transformers, unless the template asks for its type.
    call["tool_calls"][0]["function"]["arguments"] = '{"a": "é"}'
    for arguments, says in (("(c.function.arguments | tojson)", True), ("c.function.arguments", False)):
        output = rows(calls.replace("c.function.name", f"c.function.name + {arguments}"), [question, call, answer])
        assert (f"the first: {work / 'marked.jsonl'}:1: the template quotes arguments that are a text, not an object: {{\"a\": \"é\"}}" in output) == says, output
    reasons = INSTRUCTION.replace("'### Response:\\n' + m.content", "'### Response:\\n' + (m.reasoning_content or '') + m.content")
    for name in ("reasoning_content", "thinking", "reasoning"):
        thought = {**answer, name: "so"}
        output = rows(INSTRUCTION, [question, {**thought, name: "not told"}, question, answer], [question, thought])
        assert f"1 conversation with a message, reasoning or tools that the template does not write as they are, the first: {work / 'marked.jsonl'}:2: the template writes nothing of the assistant's reasoning: so" in output, output
        assert reasons != INSTRUCTION and "writes nothing" not in rows(reasons, [question, thought])
    (work / "tools.jsonl").write_text(json.dumps({"messages": [question, answer], "tools": [{"type": "function", "function": {"name": "the"}}]}))
    for template, says in ((INSTRUCTION, True), ("{{ tools[0].function.name }}" + INSTRUCTION, False)):
        (work / "marked.jinja").write_text(template)
        output = run(args, "--model", folder, "--input", work / "tools.jsonl", "--output", work / "marked.npy", "--seq-length", SEQ, "--template", work / "marked.jinja")
        assert ("the first: " + str(work / "tools.jsonl") + ":1: the template writes nothing of tools: the" in output) == says, output
    # Contents of parts: one text where the template reads no parts.
    parts = lambda *texts: {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}  # noqa: E731
    reads = CHATML.replace("m.content", "(m.content if m.content is string else m.content[1]['text'])")
    for template, taken in ((INSTRUCTION, "one\ntwo"), (reads, "two")):
        rows(template, [{**question, "content": taken}, answer])
        expected = read_rows(work / "marked.npy")
        rows(template, [parts("one", "two"), answer])
        assert read_rows(work / "marked.npy") == expected, template
    for kind, template, says in (("image_url", reads + "{# 'image_url' #}", "which no text model reads"), ("tool_use", INSTRUCTION, "does not name"), ("tool_use", INSTRUCTION + "{# 'tool_use' #}", "")):
        output = rows(template, [question, answer], [{**question, "content": [{"type": kind, kind: "x"}]}, answer], expect=3)
        assert not says or (f"marked.jsonl:2: a part of \"content\" has the type '{kind}'" in output and says in output), output
    for name, usual in (("User", "user"), ("ASSISTANT", "assistant"), ("System", "system")):
        output = rows(CHATML, [question, answer], [{**question, "role": name}, answer], expect=3)
        assert f"marked.jsonl:2: a message has the role '{name}', which {work / 'marked.jinja'} does not name: write '{usual}'" in output, output
    output = rows(INSTRUCTION.replace("'user'", "'User'"), [{**question, "role": "User"}, answer])
    assert "writes nothing" not in output and "does not name" not in output, output


def check_recipe_page(args, folder, chats):
    """The page of the Hugging Face recipe adds the tokens that `data ultrachat` uses, in its order."""
    names = {"human": "user", "gpt": "assistant", "system": "system"}
    table = pa.table({"messages": [[{"role": names[m["from"]], "content": m["value"]} for m in chat] for chat in chats]})
    for name in ("train_sft.parquet", "train_gen.parquet"):
        pyarrow.parquet.write_table(table, folder / name)
    done = subprocess.run([args.tools, "data", "ultrachat", "--input", folder / "train_sft.parquet", folder / "train_gen.parquet", "--tokenizer", folder / "tokenizer.model", "--output", folder / "ultrachat",
                           "--seq-length", "64"], capture_output=True, text=True, check=True)
    assert "1 file of train_gen among the training files, as in the recipe; --splits sft" in done.stdout, done.stdout
    used = re.findall(r"(\S+) = \d+", done.stdout.split("special tokens: ")[1].split("\n")[0])[3:]
    page = (Path(__file__).parents[2] / "docs/howto/train-lora.md").read_text().split("data ultrachat")[0].split("resize-vocab")[-1]
    assert used == re.findall(r"--add-token '([^']*)'", page), (used, page)


# Writes reasoning as Qwen3 does, and calls as Hermes.
REASONS = """{%- if tools %}{{ 'tools ' + (tools | tojson) + '\\n' }}{% endif %}{% if enable_thinking is defined and enable_thinking is false %}{{ 'quiet\\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}{% if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}
{%- if message.content %}{{ message.content }}{% endif %}{% if message.tool_calls %}{% for call in message.tool_calls %}{{ '<call>' + (call.function | tojson) }}{% endfor %}{% endif %}
{{- '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}}]


def check_fields(args, work):
    """What real files hold: fields as JSON texts, nulls, other names of reasoning, weights, answers first; JSON lines, Parquet and Arrow give equal rows."""
    folder = work / "fields"
    tokenizer = write_model(folder, "qwen2", REASONS)
    def rows(lines, *extra, name="fields.jsonl", model=folder):
        if name.endswith("jsonl"):
            (work / name).write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        (work / "fields.npy").unlink(missing_ok=True)
        output = run(args, "--model", model, "--input", work / name, "--output", work / "fields.npy", "--seq-length", SEQ, "--one-per-row", *extra)
        return read_rows(work / "fields.npy"), output
    def trained(row):
        return tokenizer.decode([token for token, target in zip(*row) if target])
    def text(row):
        return tokenizer.decode(row[0])
    question, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    call = {"function": {"name": "f", "arguments": {"x": "1", "y": None}}}
    calls = [question, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "r"}, answer]
    expected = tokenizer.apply_chat_template(calls, tools=TOOLS, tokenize=False)
    whole, _ = rows([{"messages": calls, "tools": TOOLS}, {"messages": calls, "tools": json.dumps(TOOLS)}, {"messages": calls, "tools": [json.dumps(tool) for tool in TOOLS]},
                     {"messages": json.dumps(calls), "tools": TOOLS}, {"messages": [m | ({"tool_calls": json.dumps([call])} if "tool_calls" in m else {"tool_calls": None}) for m in calls], "tools": TOOLS}])
    assert [text(row) for row in whole] == [expected] * 5, [text(row) for row in whole]
    # Columnar files have each member in each row: null where the row has none.
    plain = [{k: v for k, v in m.items()} for m in calls]
    plain[1]["tool_calls"] = [{"function": {"name": "f", "arguments": {"x": "1"}}}]
    table = pa.table({"messages": [plain, [question, answer]], "tools": [json.dumps(TOOLS), None], "other": [1, 2]})
    pyarrow.parquet.write_table(table, work / "fields.parquet")
    with pa.ipc.new_stream(str(work / "fields.arrow"), table.schema) as out:
        out.write_table(table, max_chunksize=1)
    with pa.ipc.new_file(str(work / "file.arrow"), table.schema) as out:
        out.write_table(table)
    lines, _ = rows([{"messages": plain, "tools": TOOLS}, {"messages": [question, answer]}])
    for name in ("fields.parquet", "fields.arrow", "file.arrow"):
        assert rows(None, name=name)[0] == lines, name
    # A null content is an absent one; so is a null member of a function.
    (work / "none.jinja").write_text("{{ tools | tojson if tools else '' }}{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}{% else %}{% generation %}"
                                     "{{ 'called ' + m.tool_calls[0].function.name if m.content is not defined else m.content }}{% endgeneration %}{% endif %}{% endfor %}")
    strict = [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}, "strict": True}]
    pyarrow.parquet.write_table(pa.table({"messages": [plain], "tools": [strict]}), work / "none.parquet")
    by_lines = rows([{"messages": plain, "tools": strict}], "--template", work / "none.jinja")[0]
    by_columns = rows(None, "--template", work / "none.jinja", name="none.parquet")[0]
    assert trained(by_lines[0]) == "called fa" and by_columns == by_lines, (text(by_lines[0]), text(by_columns[0]))
    other = table.select(["tools", "other"])
    pyarrow.parquet.write_table(other, work / "other.parquet")
    with pa.ipc.new_file(str(work / "other.arrow"), table.schema.remove(0)) as out:
        out.write_table(other)
    for name in ("other.parquet", "other.arrow"):
        output = run(args, "--model", folder, "--input", work / name, "--output", work / "other.npy", "--seq-length", SEQ, expect=3)
        assert "the object has: tools, other" in output, output
    assert '"arguments": {"x": "1"}' in text(lines[0]) and "<call>" not in text(lines[1])
    for name in ("reasoning_content", "thinking", "reasoning"):
        row = rows([{"messages": [question, answer | {name: "because"}]}])[0][0]
        assert trained(row) == "<think>because</think>a<|im_end|>\n", trained(row)
    # Weights, with and without generation blocks.
    weighted = {"messages": [question, answer | {"weight": 0}, question, {"role": "assistant", "content": "b", "weight": 1}]}
    assert trained(rows([weighted])[0][0]) == "b<|im_end|>\n"
    for no, yes in (({"train": False}, {"training": True}), ({"loss": False}, {"loss": True}), ({"loss_weight": 0.0}, {"loss_weight": 1.0, "loss": True})):
        other = {"messages": [question, answer | no, question, {"role": "assistant", "content": "b"} | yes], "system": None}
        assert rows([other])[0] == rows([weighted])[0], other
    assert trained(rows([weighted], model=work / "chatml")[0][0]) == "b<|im_end|>"
    share = {"conversations": [{"from": "gpt", "value": "hello", "weight": None}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    assert trained(rows([share])[0][0]) == "hello<|im_end|>\na<|im_end|>\n"
    qwen = rows([share], model=work / "qwen2.5")[0][0]
    assert trained(qwen) == "hello<|im_end|>\na<|im_end|>\n", trained(qwen)
    # ShareGPT's system text.
    asked = {"conversations": share["conversations"][1:]}
    own = {"conversations": [{"from": "system", "value": "be brief"}] + asked["conversations"]}
    plain = {"messages": [question, answer], "system": "be brief"}
    asked_for = {"prompt": [question], "completion": [answer], "system": "be brief"}
    for source in (plain, asked_for, asked | {"system": "be brief"}, own, own | {"system": "be brief"}, own | {"system": ""}):
        assert text(rows([source])[0][0]).startswith("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user"), text(rows([source])[0][0])
    pa.parquet.write_table(pa.Table.from_pylist([asked | {"system": "be brief"}]), work / "system.parquet")
    run(args, "--model", folder, "--input", work / "system.parquet", "--output", work / "fields.npy", "--seq-length", SEQ)
    assert "be brief" in text(read_rows(work / "fields.npy")[0])
    # Fields of messages that have no JSON form, as times.
    timed = {"messages": [{**message, "timestamp": datetime.datetime(2023, 4, 9, tzinfo=datetime.timezone.utc)} for message in (question, answer)]}
    pa.parquet.write_table(pa.Table.from_pylist([timed]), work / "timed.parquet")
    run(args, "--model", folder, "--input", work / "timed.parquet", "--output", work / "fields.npy", "--seq-length", SEQ)
    assert read_rows(work / "fields.npy") == rows([{"messages": [question, answer]}])[0]
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("more", pa.map_(pa.string(), pa.string()))]))
    mapped = pa.array([[{**message, "more": [("a", "b")]} for message in (question, answer)]], type=kind)
    pa.parquet.write_table(pa.table({"messages": mapped}), work / "mapped.parquet")
    output = run(args, "--model", folder, "--input", work / "mapped.parquet", "--output", work / "fields.npy", "--seq-length", SEQ, expect=3)
    assert "a value of type map<string, string" in output and "has no JSON form" in output, output
    # A directory has the files that are read one by one.
    several_files = work / "files"
    several_files.mkdir()
    (several_files / "a.jsonl").write_text(json.dumps(asked))
    (several_files / "b.JSONL.gz").write_bytes(gzip.compress(json.dumps(own).encode()))
    (several_files / "c.JSON").write_text(json.dumps([asked, own, own]))
    output = run(args, "--model", folder, "--input", several_files, "--output", work / "fields.npy", "--seq-length", SEQ)
    assert "read 2 conversations" in output and "1 .json file is beside other data" in output, output
    # A test split beside other files, and one file in two packings.
    for name, says in (("test.jsonl", "several splits: test (test.jsonl), no split"), ("val-0.jsonl.gz", "several splits: validation (val-0.jsonl.gz), no split"), ("a.jsonl.gz", "a.jsonl and a.jsonl.gz, which may be the same data")):
        (several_files / name).write_text(json.dumps(own))
        output = run(args, "--model", folder, "--input", several_files, "--output", work / "fields.npy", "--seq-length", SEQ, expect=3)
        assert says in output, output
        (several_files / name).unlink()
    # ShareGPT's function_call is a message with tool_calls; numbers that JSON has not are told in columns that are not read only.
    call = {"name": "f", "arguments": {"a": 1}}
    turns = [{"from": "human", "value": "q"}, {"from": "function_call", "value": json.dumps(call)}, {"from": "function", "value": "3"}, {"from": "gpt", "value": "three"}]
    plain_turns = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]}, {"role": "tool", "content": "3"}, {"role": "assistant", "content": "three"}]
    assert rows([{"conversations": turns, "score": float("nan")}])[0] == rows([{"messages": plain_turns}])[0]
    # Nulls of the other style, and an empty list of the other name.
    merged = [{"from": "human", "value": "q", "role": None, "content": None}, {"from": "gpt", "value": "a", "role": None, "content": None}]
    assert rows([{"conversations": merged, "messages": []}])[0] == rows([{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}])[0]
    for name, packing in (("d.jsonl.zst", "zstd"), ("e.jsonl.bz2", "bz2")):
        with pa.CompressedOutputStream(str(several_files / name), packing) as out:
            out.write(json.dumps(own).encode())
    output = run(args, "--model", folder, "--input", several_files, "--output", work / "fields.npy", "--seq-length", SEQ)
    assert "read 4 conversations" in output, output
    (several_files / "d.jsonl.zst").write_bytes((several_files / "d.jsonl.zst").read_bytes()[:-3])
    output = run(args, "--model", folder, "--input", several_files, "--output", work / "fields.npy", "--seq-length", SEQ, expect=3)
    assert "d.jsonl.zst: the packed bytes are damaged or end early" in output, output
    for name in ("a.jsonl", "b.JSONL.gz", "d.jsonl.zst", "e.jsonl.bz2"):
        (several_files / name).unlink()
    output = run(args, "--model", folder, "--input", several_files, "--output", work / "fields.npy", "--seq-length", SEQ)
    assert "read 3 conversations" in output, output
    # A bare function among the tools is one as in a call.
    bare = rows([{"messages": calls, "tools": [TOOLS[0]["function"]]}, {"messages": calls, "tools": TOOLS}])[0]
    assert bare[0] == bare[1], bare
    other_tools = {"messages": calls, "tools": [{"name": "f", "parameter_definitions": {}}]}
    assert '"type": "function"' not in text(rows([other_tools])[0][0]), text(rows([other_tools])[0][0])
    # What is not read, of all rows; pictures and what is beside texts.
    good, texts = {"messages": [question, answer]}, {"prompt": "q", "completion": "a"}
    beside = [good, {**good, "system_prompt": "s", "label": False}, {**good, "label": True, "images": [], "audio": ""}]
    table = pa.Table.from_pylist([{"images": None, "label": None, "system_prompt": None} | row for row in beside])
    pyarrow.parquet.write_table(table, work / "beside.parquet")
    with pa.ipc.new_file(str(work / "beside.arrow"), table.schema) as out:
        out.write_table(table)
    for name, label in (("beside.jsonl", 2), ("beside.parquet", 3), ("beside.arrow", 3)):  # of a column that is not read nulls are not known
        output = rows(beside, name=name)[1]
        assert f"{name}: not read: label of {label} rows, system_prompt of 1 row\n" in output, output
    pictured = [{"bytes": b"\x89PNG", "path": None}]
    for name in ("images", "image", "videos", "video", "audios", "audio"):
        lines = [good, {**good, name: ["a.png"]}]
        kept, output = rows(lines, "--skip-refused")
        assert len(kept) == 1 and f"fields.jsonl:2: '{name}' is filled, and Trireme trains text models" in output, output
        pyarrow.parquet.write_table(pa.Table.from_pylist([{**good, name: []}, {**good, name: pictured}]), work / "media.parquet")
        kept, output = rows(None, "--skip-refused", name="media.parquet")
        assert len(kept) == 1 and f"media.parquet: row 1: '{name}' is filled" in output, output
    for name, value in (("history", [["a", "b"]]), ("input", "more"), ("system_prompt", "s"), ("system", "s")):
        kept, output = rows([texts, {**texts, name: value}, {**texts, name: type(value)()}], "--skip-refused")
        assert len(kept) == 2 and f"fields.jsonl:2: '{name}' is not read beside texts" in output, output
        pyarrow.parquet.write_table(pa.Table.from_pylist([{**texts, name: type(value)()}, {**texts, name: value}]), work / "media.parquet")
        kept, output = rows(None, "--skip-refused", name="media.parquet")
        assert len(kept) == 1 and f"media.parquet: row 1: '{name}' is not read beside texts" in output, output
    # Variables: of the row, of the command line, with their types.
    for row in (rows([{"messages": [question, answer], "chat_template_kwargs": {"enable_thinking": False}}]), rows([{"messages": [question, answer]}], "--variable", "enable_thinking=false")):
        assert text(row[0][0]).startswith("quiet"), text(row[0][0])
    for folder_of, name, says in ((folder, "enable_thinkng", "Did you mean 'enable_thinking'?"), (folder, "enable_think", "'enable_thinking'"), (work / "chatml", "zzz", "variable.\n"), (work / "chatml", "fop", "variable.\n"), (work / "chatml", "content", "variable.")):
        output = run(args, "--model", folder_of, "--input", work / "fields.jsonl", "--output", work / "fields.npy", "--seq-length", SEQ, "--variable", f"{name}=false", expect=2)
        assert f"--variable {name}: {folder_of}/tokenizer_config.json: chat_template has no such variable." in output and says in output, output
    # A template for tools among several.
    several = work / "several"
    several.mkdir()
    (several / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (several / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": "default", "template": chat_templates.CHATML}, {"name": "tool_use", "template": REASONS}]}))
    both, _ = rows([{"messages": calls, "tools": TOOLS}, {"messages": [question, answer]}], model=several)
    assert text(both[0]) == expected and text(both[1]).startswith("<|im_start|>user"), both
    # The variable `documents`, and a token that the model names itself.
    write_model(work / "named", "qwen2", "{{ documents[0].text if documents }}{{ image_token }}{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}{% if add_generation_prompt %}assistant{% endif %}")
    config = json.loads((work / "named" / "tokenizer_config.json").read_text())
    (work / "named" / "tokenizer_config.json").write_text(json.dumps(config | {"extra_special_tokens": {"image_token": "<|im_start|>"}}))
    row = {"messages": [question, answer], "chat_template_kwargs": {"documents": [{"text": "DOC"}]}}
    ours, theirs = rows([row], model=work / "named")[0][0], PreTrainedTokenizerFast.from_pretrained(work / "named").apply_chat_template(row["messages"], **row["chat_template_kwargs"], return_dict=True)["input_ids"]
    assert list(ours[0][:len(theirs)]) == theirs and "DOC<|im_start|>user" in text(ours), (text(ours), theirs)
    # A null that the template would print; numbers that lose digits.
    null = {"messages": [question, {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"y": None}}}]}]}
    write_model(work / "printing", "qwen2", "{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content | trim }}{{ m.tool_calls[0].function.arguments.y if m.tool_calls }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}")
    bad = [("printing", null, "would write 'None' for a value that is null"), ("fields", {"messages": [question, answer | {"weight": 0.5}]}, '"weight" is 0.5'),
           ("fields", own | {"system": "be long"}, '"system" and the system message differ'), ("fields", asked | {"system": 3}, '"system" is a JSON number'),
           ("fields", {"messages": [question, answer], "tools": {}}, '"tools" is a JSON object, expected a list'), ("fields", {"messages": [question, answer | {"n": 2**70}]}, "has more than 64 bits"),
           ("fields", {"messages": [question, answer], "tools": "[{"}, 'bad.jsonl:1: the text in "tools" is not valid JSON'), ("fields", {"messages": [question, answer | {"content": None}]}, 'message 2: no "content"'),
           ("fields", {"messages": [question, answer | {"loss": True, "weight": 0}]}, '"loss" and "weight" differ'), ("fields", {"messages": [question, answer | {"loss_scale": [1.0, 0.5]}]}, '"loss_scale", a loss of its own'),
           ("fields", {"messages": [question, answer | {"content": [{"type": "text", "value": "a"}]}]}, 'message 2: a part of "content" is')]
    for name, line, reason in bad:
        (work / "bad.jsonl").write_text(json.dumps(line))
        output = run(args, "--model", work / name, "--input", work / "bad.jsonl", "--output", work / "bad.npy", "--seq-length", SEQ, expect=3)
        assert "bad.jsonl:1" in output and reason in output, output
    # The first error of the file is the one that is told, and --skip-refused goes on after any of them.
    mixed = [{"messages": [question, answer]}, bad[0][1], "{", {"messages": [3]}]
    (work / "bad.jsonl").write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in mixed))
    output = run(args, "--model", work / "chatml", "--input", work / "bad.jsonl", "--output", work / "bad.npy", "--seq-length", SEQ, expect=3)
    assert "bad.jsonl:2: " in output, output
    # Rows are rendered 512 at a time.
    many = [{"messages": [question, answer]}] * 511 + [{"query": "a", "response": "b"}]
    (work / "bad.jsonl").write_text("\n".join(json.dumps(line) for line in many * 2))
    output = run(args, "--model", work / "qwen2.5", "--input", work / "bad.jsonl", "--output", work / "bad.npy", "--seq-length", SEQ, expect=3)
    assert "bad.jsonl:512: " in output, output
    kept, output = rows(mixed, "--skip-refused", model=work / "chatml")
    assert len(kept) == 1 and "dropped 2 conversations that cannot be read, the first: " in output and "fields.jsonl:3 is not valid JSON" in output, output
    assert "dropped 1 conversation that the template refuses" in output, output
    print("fields of real files: equal from JSON lines, Parquet and Arrow")


def check_tokenised(args, work):
    """Rows of ids, as transformers' Trainer, Axolotl and TRL take them: labels, masks, padding at either end."""
    folder = work / "tokenised"
    tokenizer = write_model(folder, "qwen2", chat_templates.GENERATION)
    expected, rows = [generation_mask(tokenizer, c) for c in conversations(40)], []
    for i, (ids, mask) in enumerate(expected):
        labels = [id if target else -100 for id, target in zip(ids, mask)]
        row = {"input_ids": list(ids)} | ({"labels": labels}, {"assistant_masks": list(mask)}, {"completion_mask": [1] * len(ids), "loss_mask": list(map(bool, mask))})[i % 3]
        if i % 4:
            pad = lambda values, value: [value] * (i % 2) + values + [value] * (i % 4 // 2)  # noqa: E731
            row = {name: pad(values, -100 if name == "labels" else type(values[0])(0)) for name, values in row.items()} | {"attention_mask": pad([1] * len(ids), 0)}
        rows.append(row)
    table = pa.Table.from_pylist([{name: row.get(name) for name in {name for row in rows for name in row}} for row in rows])
    pyarrow.parquet.write_table(table, work / "tokens.parquet")
    with pa.ipc.new_stream(str(work / "tokens.arrow"), table.schema) as out:
        out.write_table(table)
    (work / "tokens.jsonl").write_text("\n".join(map(json.dumps, rows)))
    cut = [(ids[:SEQ], mask[:SEQ]) for ids, mask in expected if any(mask[:SEQ])]
    for name in ("tokens.jsonl", "tokens.parquet", "tokens.arrow"):
        run(args, "--model", folder, "--input", work / name, "--output", work / "tokens.npy", "--seq-length", SEQ, "--one-per-row")
        assert read_rows(work / "tokens.npy") == cut, name
    for row, reason in (({"labels": [-100, 5, 4]}, "labels[2] is 4, and input_ids[2] 6"), ({"labels": [5]}, "'labels' has 1 entries, input_ids 3"),
                        ({"loss_mask": [0, 1, 2]}, "loss_mask[2] is 2"), ({"attention_mask": [1, 0, 1]}, "attention_mask is 0 between tokens"),
                        ({"position_ids": [0, 1, 0]}, "position_ids[2] is 0 after 1"), ({"seq_lengths": [1, 2]}, "'seq_lengths' has 2 entries: a row of several documents"),
                        ({"attention_mask": [1, 2, 2]}, "attention_mask[1] is 2: a row of several documents"), ({"messages": []}, "'input_ids' beside texts"), ({"input_ids": [4, 5, 1 << 20]}, "input_ids has id 1048576, and the tokenizer has"),
                        ({"input_ids": [[1]]}, "'input_ids' holds [1]"), ({"input_ids": []}, "'input_ids' is no list of integers, or empty")):
        (work / "bad.jsonl").write_text(json.dumps({"input_ids": [4, 5, 6]} | row))
        output = run(args, "--model", folder, "--input", work / "bad.jsonl", "--output", work / "bad.npy", "--seq-length", SEQ, expect=3)
        assert "bad.jsonl:1: " in output and reason in output, output
    both = {"input_ids": [4, 5, 6], "labels": [-100, -100, 6], "messages": [{"role": "user", "content": "q"}]}
    (work / "both.jsonl").write_text(json.dumps(both))
    command = ("--model", folder, "--input", work / "both.jsonl", "--output", work / "both.npy", "--seq-length", SEQ, "--field", "input_ids")
    run(args, *command)
    assert read_rows(work / "both.npy") == [((4, 5, 6), (0, 0, 1))]
    assert "ids have no messages, of which --loss last" in run(args, *command, "--loss", "last", expect=3)


def check_long(args, work):
    """A conversation of n messages takes time in proportion to n, and has the mask of the generation blocks."""
    def seconds(messages, name, count):
        chat = [{"role": "assistant" if i % 2 else "user", "content": f"message {i}"} for i in range(messages)]
        (work / "long.jsonl").write_text("\n".join([json.dumps({"messages": chat})] * count))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(args, "--model", work / name, "--input", work / "long.jsonl", "--output", work / f"{name}.npy", "--seq-length", 200000, "--one-per-row", "--threads", 1)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime
    fresh = write_model(work / "plain", "qwen2", chat_templates.GENERATION.replace("{%- generation %}", "").replace("{% endgeneration %}", "")
                        + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
    assert fresh.chat_template
    # The last messages in a loop of their own, as Kimi's template has them.
    halves = "{% set k = messages | length // 2 %}" + "".join(
        "{% for m in messages[" + part + "] %}<{{ m.role }}>{{ m.content }}</>{% endfor %}" for part in (":k", "k:")) + "{% if add_generation_prompt %}<assistant>{% endif %}"
    write_model(work / "halves", "qwen2", halves)
    for name in ("plain", "qwen2.5", "halves"):
        short, long = seconds(500, name, 8), seconds(4000, name, 1)
        assert long < 3 * short, f"{name}: 4,000 messages take {long:.2f} s, 8 times 500 {short:.2f} s"
    seconds(1000, "chatml", 1)
    block = np.load(work / "chatml.npy", allow_pickle=True)[0]
    seconds(1000, "plain", 1)
    prefix = np.load(work / "plain.npy", allow_pickle=True)[0]
    differ = [i for i, (a, b) in enumerate(zip(block["loss_mask"], prefix["loss_mask"])) if a != b]
    assert list(block["input_ids"]) == list(prefix["input_ids"]) and len(differ) == 500, len(differ)  # the line end after each answer
    print("long conversations: in linear time")


def check_errors(args, work):
    folder = work / "llama3"
    def refused(lines, *extra, expect=3, name="bad.jsonl", model=folder):
        (work / name).write_text("\n".join(lines))
        return run(args, "--model", model, "--input", work / name, "--output", work / "bad.npy", "--seq-length", 64, *extra, expect=expect)
    good = json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
    for line, reason in (("{", "bad.jsonl:2 is not valid JSON"), ("[]\0 {}", "bad.jsonl:2 is not valid JSON: byte 2 is NUL"), ("[1]", "bad.jsonl:2: not a JSON object"), ('{"message": []}', "bad.jsonl:2: no field 'messages'"),
                         ('{"messages": [{"role": "user"}]}', "bad.jsonl:2: message 1: no \"content\""), ('{"conversations": [{"from": "alien", "value": ""}]}', "bad.jsonl:2: \"from\" is 'alien'"),
                         ('{"messages": [{"role": 1, "content": ""}]}', "message 1: \"role\" is not a text"), ('{"messages": [3]}', "message 1: not an object")):
        output = refused([good, line])
        assert reason in output, output
    assert not (work / "bad.npy").exists()
    refusing = work / "refusing"
    refusing.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (refusing / file).write_bytes((folder / file).read_bytes())
    (refusing / "chat_template.jinja").write_text(chat_templates.MISTRAL1)
    system = json.dumps({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
    output = refused([good, system], model=refusing)
    assert "bad.jsonl:2: " in output and "chat_template.jinja:1:" in output and "the roles must take turns" in output, output
    output = refused([good, system], "--skip-refused", model=refusing, expect=0)
    assert "dropped 1 conversation that the template refuses" in output, output
    # A template that writes a message in another way once others follow.
    (refusing / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}{% if loop.last %}!{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}assistant{% endif %}")
    output = refused([good], model=refusing)
    assert 'message 2 is written in two ways: the prompt for it has "user!aassistant", the conversation "useraassistant!b"' in output and "generation" in output and "--loss last" not in output, output
    output = refused([json.dumps({"messages": [{"role": "user", "content": "only"}]})])
    assert "no conversation is left of 1" in output, output
    for extra, template in (((), '[]'), (("--template-name", "rag"), json.dumps([{"name": "default", "template": "x"}]))):
        bare = work / "bare"
        bare.mkdir(exist_ok=True)
        (bare / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
        (bare / "tokenizer_config.json").write_text(f'{{"chat_template": {template}}}' if extra else "{}")
        output = refused([good], *extra, model=bare)  # no row is at fault
        assert "no chat template" in output and "bad.jsonl" not in output and "skip-refused" not in output, output
    assert "no chat template 'rag'" in refused([good], "--template-name", "rag")
    for lines, extra, reason in (([], (), "bad.jsonl: there is no conversation in it"), ([good], ("--valid-output", work / "v.npy", "--valid-fraction", 1e-9), "--valid-fraction 1e-09 draws none or all"),
                                 (['{"text": "a"}'], (), "`trireme data pack`"), (['{"question": "a", "answer": "b"}'], (), "`trireme data chat` makes rows of questions and answers, once they are named instruction and output, with history and system."),
                                 (['{"prompt": "a", "chosen": "b", "rejected": "c"}'], (), "`trireme data preference` makes rows of pairs of answers."),
                                 (['{"system": "s", "conversation": [{"human": "a", "assistant": "b"}]}'], (), "the object has: system, conversation. Turns are {role, content} or {from, value}: write {human, assistant} as two"),
                                 (['{"messages": null}'], (), "'messages' is null"), (["[1]"], (), "one list is named .json"), (['{"a": 18446744073709551616}'], (), "18446744073709551616 has more than 64 bits"),
                                 (['{"a": -9223372036854775809}'], (), "-9223372036854775809 has more")):
        output = refused(lines, *extra)
        assert reason in output, (reason, output)
    wide = json.dumps({"id": 2**64 - 1, "low": -2**63} | json.loads(good))
    caps = json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "Assistant", "content": "b"}]})
    output = refused([wide, caps])
    assert "bad.jsonl:2: a message has the role 'Assistant'" in output and "write 'assistant'" in output, output
    output = refused([wide, json.dumps({"messages": [{"role": "user", "content": "a"}]})], expect=0)
    assert "the first: " + str(work / "bad.jsonl") + ":2" in output, output
    assert "--long: x not in {cut,drop}" in refused([good], "--long", "x", expect=2)


def check_training(args, work):
    """Raw conversations to an adapter, with the model's own tokenizer.json: the tool, and one run."""
    model = work / "model"
    write_model(work / "source", "llama3", chat_templates.LLAMA3)
    subprocess.run([f"{args.bin}/trireme", "init-model", "--preset", "llama-tiny", "--layers", "2", "--vocab-size", "1000", "--max-positions", str(SEQ), "--tokenizer", work / "source",
                    "--output", model], check=True, capture_output=True)
    for file in ("tokenizer_config.json",):
        assert (model / file).exists(), f"init-model --tokenizer did not copy {file}"
    chats = [[{"role": "user", "content": f"What is {i % 5}?"}, {"role": "assistant", "content": f"It is the number {i % 5}."}] for i in range(200)]
    (work / "train.jsonl").write_text("\n".join(json.dumps({"messages": c}) for c in chats))
    run(args, "--model", model, "--input", work / "train.jsonl", "--output", work / "train.npy", "--valid-output", work / "valid.npy", "--valid-fraction", "0.2", "--seq-length", SEQ)
    (work / "run.yaml").write_text(f"""model: {{path: model}}
lora: {{r: 8, alpha: 16, target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]}}
data: {{train: train.npy, valid: valid.npy, seq_length: {SEQ}}}
batch: {{global_batch_size: 4, micro_batch_size: 1}}
optimizer: {{lr: 1.0e-2}}
schedule: {{name: constant}}
train: {{max_steps: 30}}
output: {{dir: run}}
""")
    done = subprocess.run([f"{args.bin}/train_llama", "--config", work / "run.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "loss: sample_mean: each row has the same weight" in done.stderr, done.stderr
    for more, says in (("train.loss=token_mean", False), ("data.train=one.npy", False), ("output.dir=other", True)):
        if "one.npy" in more:
            run(args, "--model", model, "--input", work / "train.jsonl", "--output", work / "one.npy", "--seq-length", SEQ, "--one-per-row")
        dry = subprocess.run([f"{args.bin}/train_llama", "--config", work / "run.yaml", "--set", "output.dir=other", "--set", more, "--dry-run"], capture_output=True, text=True, check=True)
        assert ("loss: sample_mean: each row" in dry.stdout + dry.stderr) == says, (more, dry.stdout, dry.stderr)
    losses = [json.loads(line)["loss"] for line in (work / "run" / "metrics.jsonl").read_text().splitlines() if '"event":"train"' in line]
    assert losses[-1] < 0.8 * losses[0], losses
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), work / "run" / "adapter")
    print(f"training: loss {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--bin")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if args.bin:
            check_training(args, work)
        else:
            check_parity(args, work)
            check_sentencepiece(args, work)
            check_fields(args, work)
            check_tokenised(args, work)
            check_long(args, work)
            check_errors(args, work)


if __name__ == "__main__":
    main()
