#!/usr/bin/env python3
"""Chat templates against transformers: the text of many conversations with templates of the kinds of Llama 2, Llama 3, Llama 3.1, Qwen2, Qwen2.5,
Mistral, Zephyr and ChatML, and with templates that use one construct each. Exit code 77 = skipped.

usage: chat_template_parity.py --probe PROGRAM [--folder DIRECTORY]
--folder: also the *.jinja files of a directory."""
import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

try:
    import jinja2
    from transformers.utils.chat_template_utils import render_jinja_template
except ImportError as error:
    print(f"SKIPPED: {error}; scripts/setup.sh installs what this test needs")
    sys.exit(77)

import chat_templates  # noqa: E402

TEXTS = ["", " ", "Hello", "  spaces around  ", "two\nlines\n", "\n\nlines before", "Grüße, 世界! \U0001f600", "e\u0301 \u00a0nbsp\u3000",
         "<|im_end|> [INST] </s> {{ x }} {% if %}", "'quotes' and \"more\" \\ back", "tab\tand \r\n return", "a" * 3000, "\u2028line separator", "&<>'\"",
         "None", "0"]
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
    except (jinja2.exceptions.TemplateError, TypeError, KeyError, ValueError, AttributeError, ArithmeticError, IndexError) as error:
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


def compare(name, probe, requests, may_refuse=False):
    counts = {"equal": 0, "refused by both": 0, "not supported here": 0}
    for request, ours in zip(requests, run_probe(probe, requests)):
        theirs = expected(request)
        if "error" in theirs and "error" in ours:
            counts["refused by both"] += 1
        elif may_refuse and "error" in ours and "not supported" in ours["error"]:
            counts["not supported here"] += 1
        else:
            assert ours == theirs, (f"{name}: {request['messages']!r}\ntools {request.get('tools')}\nours   {ours}\ntheirs {theirs}\n"
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--probe", required=True)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    total = {"equal": 0, "refused by both": 0, "not supported here": 0}

    def add(counts):
        for key, value in counts.items():
            total[key] += value

    for name, template in chat_templates.MODELS.items():
        counts = compare(name, args.probe, list(model_requests(template, 60)))
        assert counts["equal"] > 20, f"{name} refuses most conversations"
        add(counts)
    messages = [{"role": "user", "content": " Hello "}, {"role": "assistant", "content": "Grüße"}]
    constructs = [{"template": text, "messages": messages, "tools": TOOLS, "prompt": False, "variables": VARIABLES} for text in chat_templates.CONSTRUCTS]
    counts = compare("constructs", args.probe, constructs)
    assert counts["refused by both"] == 0, [r["template"] for r in constructs if "error" in expected(r)]
    add(counts)
    refused = [{"template": text, "messages": messages, "prompt": False, "variables": VARIABLES} for text, _ in chat_templates.REFUSED]
    for (text, reason), answer in zip(chat_templates.REFUSED, run_probe(args.probe, refused)):
        assert "error" in answer and reason in answer["error"], f"{text[:200]}: expected a refusal with '{reason}', got {str(answer)[:500]}"
        assert answer["error"].startswith("template:"), answer
    spans = [{"template": chat_templates.GENERATION, "messages": m, "spans": True, "prompt": False, "variables": VARIABLES} for m in conversations(60)]
    add(compare("generation blocks", args.probe, spans))
    for path in sorted(args.folder.glob("*.jinja")) if args.folder else []:
        add(compare(path.name, args.probe, list(model_requests(path.read_text(), 60)), may_refuse=True))
    print(f"all: {total}, {len(refused)} templates refused with their reason")


main()
