#!/usr/bin/env python3
"""Chat templates against transformers: the text of many conversations with templates of the kinds of Llama 2, Llama 3, Llama 3.1, Qwen2, Qwen2.5,
Mistral, Zephyr and ChatML, and with templates that use one construct each. Exit code 77 = skipped.

usage: chat_template_parity.py --probe PROGRAM [--fuzz CONVERSATIONS [--seed NUMBER]]
--fuzz: instead of the above, random conversations of that number through each real template: the *.jinja files of the folder that
TRIREME_CHAT_TEMPLATES names, else those that the Python packages of this machine hold (trl, axolotl), and the templates of this test."""
import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

try:
    from transformers.utils.chat_template_utils import render_jinja_template
except ImportError as error:
    print(f"SKIPPED: {error}; scripts/setup.sh installs what this test needs")
    sys.exit(77)

import chat_templates  # noqa: E402

TEXTS = ["", " ", "Hello", "  spaces around  ", "two\nlines\n", "\n\nlines before", "Grüße, 世界! \U0001f600", "e\u0301 \u00a0nbsp\u3000",
         "<|im_end|> [INST] </s> {{ x }} {% if %}", "'quotes' and \"more\" \\ back", "tab\tand \r\n return", "a" * 3000, "\u2028line separator", "&<>'\"",
         "None", "0"]
REASONS = Counter()
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}


def conversations(count):
    rng = random.Random(11)
    for i in range(count):
        messages = []
        if i % 3 == 0:
            messages.append({"role": "system", "content": rng.choice(TEXTS)})
        for turn in range(rng.randrange(0, 7)):
            messages.append({"role": "assistant" if turn % 2 else "user", "content": rng.choice(TEXTS)})
        if i % 13 == 5:  # what templates refuse, or treat as a case of its own
            rng.shuffle(messages)
        if i % 17 == 3 and messages:
            messages[-1] = {"role": rng.choice(["tool", "ipython", "other"]), "content": rng.choice(TEXTS)}
        if i % 19 == 7 and messages:
            messages[-1] = {**messages[-1], "name": "x", "weight": 1.5, "parts": [1, None, True, {"a": "b"}]}
        yield messages


TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather of a \"place\" <here>", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "enum": ["Köln", "Paris"]}, "days": {"type": "integer", "default": 1.5}},
    "required": ["place"]}}}]
CALL = [{"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "id": "123456789", "function": {"name": "get_weather", "arguments": {"place": "Köln", "days": 2}}}]},
        {"role": "tool", "name": "get_weather", "tool_call_id": "123456789", "content": "{\"temperature\": 21.0}"},
        {"role": "assistant", "content": "21 degrees."}]


def expected(request):
    spans = bool(request.get("spans"))
    options = {"return_assistant_tokens_mask": True} if spans else {"add_generation_prompt": request["prompt"]}
    try:
        texts, found = render_jinja_template([request["messages"]], chat_template=request["template"], tools=request.get("tools"), **options,
                                             **request["variables"])
    except Exception as error:  # whatever the template's Python raises
        return {"error": str(error)}
    text = texts[0]
    if not spans:
        return {"text": text}
    return {"text": text, "spans": [[len(text[:a].encode()), len(text[:b].encode())] for a, b in found[0] if a < b]}


def run_probe(probe, requests):
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([probe], input=lines.encode(), capture_output=True, check=True)
    answers = [json.loads(line) for line in done.stdout.decode().split("\n") if line]
    assert len(answers) == len(requests), (len(answers), len(requests), done.stderr[-500:])
    return answers


# What is refused by name. A null that a template prints is the text "None" for transformers; here it is no text to train on.
NOT_SUPPORTED = ("not supported", "too large", "would write 'None' for a value that is null")


def compare(name, probe, requests, may_refuse=False):
    counts = {"equal": 0, "refused by both": 0, "refused here": 0}
    for request, ours in zip(requests, run_probe(probe, requests)):
        theirs = expected(request)
        if "error" in theirs and "error" in ours:
            counts["refused by both"] += 1
        elif may_refuse and "error" in ours and any(part in ours["error"] for part in NOT_SUPPORTED):
            counts["refused here"] += 1
            REASONS[ours["error"].split(": ", 1)[-1]] += 1
        else:
            assert ours == theirs, (f"{name}: {request['messages']!r}\ntools {request.get('tools')}\nvariables {request['variables']}\nours   {ours}\ntheirs {theirs}\n"
                                    f"{request['template'][:600]}")
            counts["equal"] += 1
    print(f"{name}: {counts}")
    return counts


def model_requests(template, size):
    for i, messages in enumerate(conversations(size)):
        for prompt in (False, True):
            yield {"template": template, "messages": messages, "prompt": prompt, "variables": VARIABLES | ({"date_string": "1 Jan 2024"} if i % 2 else {})}
    for tools in (None, TOOLS):
        for length in range(1, 5):
            yield {"template": template, "messages": CALL[:length], "tools": tools, "prompt": True, "variables": VARIABLES}


# ---- random conversations

THOUGHTS = ["<think>\nsteps\n</think>\n\nanswer", "</think>", "a</think>b</think>c", "<think></think>x", "<think>open"]


def random_value(rng, depth=0):
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind >= 7:
        return {rng.choice(["a", "b", "type", "name", "Größe", "x y", "items"]): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}
    if kind == 6:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return [None, rng.random() < 0.5, rng.choice([0, 1, -7, 2**40]), rng.choice([0.5, -1.0, 1e-7, 1e22, 3.25e5]), rng.choice(TEXTS), rng.choice(TEXTS)][kind]


def random_content(rng):
    kind = rng.random()
    if kind < 0.85:
        return rng.choice(TEXTS + THOUGHTS)
    if kind < 0.88:
        return None
    if kind < 0.97:
        parts = [{"type": "text", "text": rng.choice(TEXTS)}, {"type": "image"}, {"type": "image_url", "image_url": {"url": "x"}}, {"type": "text"}, {"text": "bare"}, "text", {"type": "video"}]
        return rng.choices(parts, [8, 2, 1, 1, 1, 1, 1], k=rng.randrange(4))
    return random_value(rng)


def random_schema(rng, depth=0):
    kind = rng.choice(["string", "integer", "number", "boolean", "array", "object"] if depth < 2 else ["string", "number"])
    schema = {"type": rng.choice([kind, kind, kind, [kind, "null"]])}
    if rng.random() < 0.6:
        schema["description"] = rng.choice(TEXTS)
    if kind == "array" and rng.random() < 0.8:
        schema["items"] = random_schema(rng, depth + 1)
    if kind == "object":
        schema["properties"] = {rng.choice("abcdef"): random_schema(rng, depth + 1) for _ in range(rng.randrange(3))}
        if rng.random() < 0.5:
            schema["required"] = list(schema["properties"])[:1]
    if rng.random() < 0.2:
        schema["enum"] = [random_value(rng, 3), random_value(rng, 3)]
    if rng.random() < 0.1:
        schema[rng.choice(["default", "nullable", "format", "anyOf", "oneOf"])] = random_value(rng, 2)
    return schema


def random_tools(rng):
    if rng.random() < 0.6:
        return None
    tools = []
    for _ in range(rng.randrange(3)):
        parameters = {"type": "object", "properties": {rng.choice(["place", "days", "x"]): random_schema(rng) for _ in range(rng.randrange(3))}, "required": ["x"]}
        function = {"name": rng.choice(["get_weather", "f", "browser"]), "description": rng.choice(TEXTS), "parameters": parameters}
        if rng.random() < 0.2:
            function["return"] = random_schema(rng)
        if rng.random() < 0.1:
            del function[rng.choice(list(function))]
        tools.append(rng.choice([{"type": "function", "function": function}] * 5 + [function, random_value(rng, 2)]))
    return [tool for tool in tools if isinstance(tool, dict)]


def random_calls(rng):
    if rng.random() < 0.1:
        return rng.choice([None, [], random_value(rng)])
    calls = []
    for _ in range(rng.choice([1, 1, 2])):
        arguments = {rng.choice(["place", "days", "x"]): random_value(rng, 1) for _ in range(rng.randrange(3))}
        function = {"name": rng.choice(["get_weather", "f"]), "arguments": rng.choice([arguments, arguments, json.dumps(arguments), None])}
        calls.append(rng.choice([{"type": "function", "id": "123456789", "function": function}] * 4 + [{"function": function}, function]))
    return calls


def random_conversation(rng):
    messages = []
    if rng.random() < 0.35:
        messages.append({"role": rng.choice(["system"] * 5 + ["developer"]), "content": random_content(rng)})
    for turn in range(rng.randrange(0, 9)):
        message = {"role": "assistant" if turn % 2 else "user", "content": random_content(rng)}
        if turn % 2:
            if rng.random() < 0.3:
                message[rng.choice(["reasoning_content", "thinking", "reasoning"])] = rng.choice([None, "", "because", " \n why \n", *TEXTS[:4]])
            if rng.random() < 0.25:
                message["tool_calls"] = random_calls(rng)
                if rng.random() < 0.5:
                    message["content"] = rng.choice([None, ""])
                if rng.random() < 0.1:
                    del message["content"]
        if rng.random() < 0.05:
            message[rng.choice(["name", "prefix", "channel", "recipient"])] = random_value(rng)
        messages.append(message)
        for _ in range(rng.randrange(1, 3) if "tool_calls" in message and rng.random() < 0.8 else 0):
            messages.append({"role": rng.choice(["tool", "tool", "tool", "ipython"]), "name": "get_weather", "tool_call_id": "123456789", "content": random_content(rng)})
    if rng.random() < 0.08:
        rng.shuffle(messages)
    return messages


def random_requests(template, count, seed):
    rng = random.Random(seed)
    spans = "generation %}" in template.replace("endgeneration", "")
    for _ in range(count):
        variables = dict(VARIABLES)
        for name, values in (("enable_thinking", [True, False]), ("date_string", ["1 Jan 2024"]), ("tools_in_user_message", [False]), ("reasoning_effort", ["high"]), ("keep_past_thinking", [True])):
            if rng.random() < 0.2:
                variables[name] = rng.choice(values)
        request = {"template": template, "messages": random_conversation(rng), "tools": random_tools(rng), "prompt": rng.random() < 0.5, "variables": variables}
        yield request | {"spans": True} if spans and rng.random() < 0.7 else request


def real_templates():
    if folder := os.environ.get("TRIREME_CHAT_TEMPLATES"):
        folders = [Path(folder)]
    else:
        specs = [(importlib.util.find_spec(package), inner) for package, inner in (("trl", "chat_templates"), ("axolotl", "utils/chat_templates/templates"))]
        folders = [Path(spec.origin).parent / inner for spec, inner in specs if spec and spec.origin]
    return {path.name: path.read_text() for folder in folders for path in sorted(folder.glob("*.jinja"))}


def fuzz(args):
    real = real_templates()
    for name, template in {**real, **chat_templates.MODELS, **chat_templates.SHIPPED, "generation": chat_templates.GENERATION}.items():
        compare(name, args.probe, list(random_requests(template, args.fuzz, args.seed)), may_refuse=True)
    print(f"{len(real)} real templates (TRIREME_CHAT_TEMPLATES names a folder of them), {len(chat_templates.MODELS) + 1} of this test, {args.fuzz} conversations each: equal texts and masks, or refused")
    for reason, count in REASONS.most_common():
        print(f"  {count} refused here: {reason[:160]}")


def turns(messages):
    """(system or None, [(question, answer or None)])"""
    system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
    rest = [m["content"] for m in messages[system is not None:]]
    return system, [(rest[i], rest[i + 1] if i + 1 < len(rest) else None) for i in range(0, len(rest), 2)]


def llama2(messages):
    """Parts (text, whether it has a loss), as Meta's llama/generation.py puts dialogs together."""
    system, pairs = turns(messages)
    for i, (question, answer) in enumerate(pairs):
        if i == 0 and system is not None:
            question = f"<<SYS>>\n{system}\n<</SYS>>\n\n{question}"
        yield f"<s>[INST] {question.strip()} [/INST]", False
        if answer is not None:
            yield f" {answer.strip()} </s>", True


def mistral_v1(messages):
    """As mistral-common's tokenizer v1."""
    system, pairs = turns(messages)
    yield "<s>", False
    for i, (question, answer) in enumerate(pairs):
        yield f" [INST] {'' if i or system is None else system + chr(10) * 2}{question} [/INST]", False
        if answer is not None:
            yield f" {answer}</s>", True


def mistral_v3(messages):
    system, pairs = turns(messages)
    yield "<s>", False
    for i, (question, answer) in enumerate(pairs):
        yield f"[INST] {system + chr(10) * 2 if i + 1 == len(pairs) and system is not None else ''}{question}[/INST]", False
        if answer is not None:
            yield f" {answer}</s>", True


def deepseek(messages):
    system, pairs = turns(messages)
    yield "<s>" + (system or ""), False
    for question, answer in pairs:
        yield f"<｜User｜>{question}", False
        if answer is not None:
            yield "<｜Assistant｜>", False
            yield f"{answer}<｜end▁of▁sentence｜>", True


FORMATS = {"llama2": llama2, "mistral-v1": mistral_v1, "mistral-v3": mistral_v3, "deepseek-r1-distill": deepseek}


def check_shipped(probe):
    """The templates of models/decoder/chat_templates write what the models were trained on, with the loss on the answers; DeepSeek's as TRL's does."""
    assert set(FORMATS) == set(chat_templates.SHIPPED), set(chat_templates.SHIPPED) ^ set(FORMATS)
    rng, chats = random.Random(4), []
    for i in range(80):
        messages = [{"role": "system", "content": rng.choice(TEXTS)}] if i % 2 else []
        messages += [{"role": "assistant" if turn % 2 else "user", "content": rng.choice(TEXTS)} for turn in range(rng.randrange(1, 7))]
        chats.append(messages)
    theirs = real_templates().get("deepseek_r1_distill_training.jinja")
    for name, template in chat_templates.SHIPPED.items():
        requests = [{"template": template, "messages": m, "spans": True, "prompt": False, "variables": VARIABLES} for m in chats]
        compare(name, probe, requests)
        for messages, ours in zip(chats, run_probe(probe, requests)):
            parts = list(FORMATS[name](messages))
            assert ours["text"] == "".join(text for text, _ in parts), (name, messages, ours["text"])
            text = ours["text"].encode()
            assert [text[a:b].decode() for a, b in ours["spans"]] == [part for part, loss in parts if loss], (name, messages, ours)
            if name == "deepseek-r1-distill" and theirs:
                assert ours["text"] == expected({"template": theirs, "messages": messages, "prompt": False, "variables": VARIABLES})["text"], messages
    wrong = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    for name in ("llama2", "mistral-v1", "mistral-v3"):
        answer = run_probe(probe, [{"template": chat_templates.SHIPPED[name], "messages": wrong, "prompt": False, "variables": VARIABLES}])[0]
        assert "take turns, but message 2 is of user" in answer["error"], answer
    reasoning = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "r"}]
    request = {"template": chat_templates.SHIPPED["deepseek-r1-distill"], "messages": reasoning, "prompt": True, "variables": VARIABLES}
    assert run_probe(probe, [request])[0]["text"] == "<s><｜User｜>q<｜Assistant｜><think>\nr\n</think>\n\na<｜end▁of▁sentence｜><｜Assistant｜><think>\n"
    print(f"{len(FORMATS)} shipped templates: the models' formats{'; DeepSeek as in TRL' if theirs else ''}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--probe", required=True)
    parser.add_argument("--fuzz", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.fuzz:
        return fuzz(args)
    total = {"equal": 0, "refused by both": 0, "refused here": 0}

    def add(counts):
        for key, value in counts.items():
            total[key] += value

    check_shipped(args.probe)
    for name, template in chat_templates.MODELS.items():
        counts = compare(name, args.probe, list(model_requests(template, 60)))
        assert counts["equal"] > 20, f"{name} refuses most conversations"
        add(counts)
    messages = [{"role": "user", "content": " Hello "}, {"role": "assistant", "content": "Grüße"}]
    constructs = [{"template": text, "messages": messages, "tools": TOOLS, "prompt": False, "variables": VARIABLES} for text in chat_templates.CONSTRUCTS]
    counts = compare("constructs", args.probe, constructs)
    assert counts["refused by both"] == 0, [r["template"] for r in constructs if "error" in expected(r)]
    add(counts)
    talk = [{"role": "assistant" if i % 2 else "user", "content": str(i)} for i in range(1500)]
    counts = compare("long", args.probe, [{"template": text, "messages": talk, "tools": TOOLS * 1200, "prompt": False, "variables": VARIABLES} for text in chat_templates.LONG])
    assert counts["equal"] == len(chat_templates.LONG), counts
    refused = [{"template": text, "messages": messages, "prompt": False, "variables": VARIABLES} for text, _ in chat_templates.REFUSED]
    for (text, reason), answer in zip(chat_templates.REFUSED, run_probe(args.probe, refused)):
        assert "error" in answer and reason in answer["error"], f"{text[:200]}: expected a refusal with '{reason}', got {str(answer)[:500]}"
        assert answer["error"].startswith("template:"), answer
    spans = [{"template": chat_templates.GENERATION, "messages": m, "spans": True, "prompt": False, "variables": VARIABLES} for m in conversations(60)]
    add(compare("generation blocks", args.probe, spans))
    print(f"all: {total}, {len(refused)} templates refused with their reason")


main()
