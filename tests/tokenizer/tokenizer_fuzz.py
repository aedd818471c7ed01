#!/usr/bin/env python3
"""Our ids against `tokenizers` and transformers' LlamaTokenizer: made strings (all of Unicode, white space, combining marks, added tokens glued to words) through tokenizers of nine shapes, trained here with the settings of the real models. Exit code 77 = skipped.

usage: tokenizer_fuzz.py --probe PROGRAM [--slow]"""
import argparse
import json
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

try:
    import byte_level as common
    import sentencepiece
    from google import protobuf  # noqa: F401  transformers reads tokenizer.model with it
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import AutoTokenizer, GPT2Tokenizer, LlamaTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer
except ImportError as error:
    print(f"SKIPPED: {error}; scripts/setup.sh installs what this test needs")
    sys.exit(77)

AWKWARD = [AddedToken("<l>", lstrip=True, special=True), AddedToken("<r>", rstrip=True, special=True), AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False),
           AddedToken("<one>", single_word=True, normalized=False), AddedToken("<n>", normalized=True), AddedToken("<n>x", normalized=True), AddedToken(" <gap> ", normalized=False),
           AddedToken("e\u0301t", normalized=True), AddedToken("two words", normalized=True, rstrip=True), AddedToken("\u2581qq", normalized=False), AddedToken("ww", single_word=True, lstrip=True),
           AddedToken("\t", lstrip=True, rstrip=True, normalized=False), AddedToken("<s  n>", special=True, normalized=True)]


def strings(rng, count, tokens):
    """Hostile strings with added tokens of this tokenizer glued to words, white space and marks."""
    glue = ["", "", " ", "  ", "\n", "\t ", "\u00a0", "\u2003", "\u3000", "a", "\u00e9", "\u0301", "\u200d", "_", "7", "\u2581", "\u4e2d", "\U0001f600", "word", " word", "."]
    for text in common.hostile_texts(rng, count):
        parts = [text] if rng.random() < 0.7 else []
        for _ in range(rng.randrange(0, 6)):
            parts.insert(rng.randrange(len(parts) + 1), rng.choice(glue) + rng.choice(tokens) + rng.choice(glue))
        yield "".join(parts)


def train_sentencepiece(work, lines, **options):
    text = work / "lines.txt"
    text.write_text("\n".join(lines), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(**{**dict(
        input=str(text), model_prefix=str(work / "tokenizer"), vocab_size=900, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, character_coverage=0.9995, split_digits=True, allow_whitespace_only_pieces=True, minloglevel=2), **options})


def llama(folder, lines, config, **options):
    """A directory with tokenizer.model and tokenizer_config.json, as transformers opens it."""
    folder.mkdir()
    train_sentencepiece(folder, lines, **options)
    (folder / "lines.txt").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **config}))
    return LlamaTokenizer.from_pretrained(folder)._tokenizer


def decoder_entries(first, tokens):
    return {str(first + i): {"content": t.content, "lstrip": t.lstrip, "rstrip": t.rstrip, "single_word": t.single_word, "normalized": t.normalized, "special": t.special}
            for i, t in enumerate(tokens)}


def saved_folder(folder):
    folder.mkdir()
    return folder


def saved(folder, tokenizer, **config):
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


def shapes(work, texts):
    """(name, what Trireme opens, the reference, whether its decoder is compared, the texts of its added tokens)"""
    lines = [line for text in texts for line in text.split("\n") if line.strip() and max(line) < "\u0500"]
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>", "<sep>", "\u212bngstrom"]
    for kind in ("gpt2", "llama3", "qwen2"):
        yield kind, work / kind, saved(work / kind, common.train(kind, texts, 1200)), True, specials

    names = ["<s>", "</s>", "<unk>", "<0x41>", "<tool>", *(t.content for t in AWKWARD)]
    yield "sentencepiece, legacy", work / "legacy", llama(work / "legacy", lines, {"legacy": True}, user_defined_symbols=["<tool>"]), True, names
    reference = llama(work / "first", lines, {"legacy": False, "added_tokens_decoder": decoder_entries(900, AWKWARD)})
    assert all(reference.token_to_id(t.content) == 900 + i for i, t in enumerate(AWKWARD))
    yield "sentencepiece, not legacy", work / "first", reference, True, names
    yield "sentencepiece, no prefix", work / "never", llama(work / "never", lines, {"add_prefix_space": False}), True, names
    # LlamaTokenizer drops the rules of the model.
    yield "sentencepiece with rules", work / "rules", llama(work / "rules", lines, {}, normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True), True, names
    # What transformers 5 writes: a tokenizer.json and no tokenizer.model.
    LlamaTokenizer.from_pretrained(work / "first").save_pretrained(work / "saved")
    assert not (work / "saved" / "tokenizer.model").exists()
    yield "saved by transformers", work / "saved", LlamaTokenizer.from_pretrained(work / "saved")._tokenizer, True, names

    # Tokens that files beside the tokenizer list or name: with a special token that stays text, one that hides, and ids that only the order gives.
    more = [AddedToken("<tool>", normalized=False), AddedToken("</s>", rstrip=True, normalized=False), AddedToken("<|im_start|>", special=True, normalized=False)]
    listed = {"added_tokens_decoder": {"2": {**decoder_entries(2, [more[1]])["2"], "special": False}, **decoder_entries(900, [more[2], more[0]])}}
    marks = ["</s>", "</s> ", "<|im_start|>", "<tool>", "<pad>", "<cls>", "<more>", "<s>", "<unk>"]
    yield "Phi-3's lists", work / "phi", llama(work / "phi", lines, {**listed, "eos_token": "<|im_start|>", "pad_token": "<pad>", "cls_token": "<cls>"}), True, marks
    yield "old Alpaca", work / "alpaca", llama(work / "alpaca", lines, {"bos_token": "</s>", "unk_token": "</s>", "additional_special_tokens": ["<more>"]}), True, marks
    common.train("qwen2", texts, 1200).model.save(str(saved_folder(work / "two")))
    for name, kind, config in (("GPT-2", GPT2Tokenizer, {"add_prefix_space": True, "pad_token": "<pad>"}), ("OPT", GPT2Tokenizer, {"bos_token": "ab", "eos_token": "ab", "unk_token": "ab"}),
                               ("Qwen2 with a space", Qwen2Tokenizer, {"add_prefix_space": True}), ("Qwen2", Qwen2Tokenizer, {"bos_token": None, "eos_token": "<|im_end|>", "additional_special_tokens": ["<more>", "<|im_start|>"]})):
        folder = saved_folder(work / name)
        for file in ("vocab.json", "merges.txt"):
            (folder / file).write_bytes((work / "two" / file).read_bytes())
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind.__name__, **config}))
        count = len(json.loads((folder / "vocab.json").read_text()))
        if name == "GPT-2":
            (folder / "added_tokens.json").write_text(json.dumps({"<pad>": count, "<tool>": count + 1}))
            (folder / "special_tokens_map.json").write_text('{"additional_special_tokens": ["<tool>", "<more>"]}')
        yield f"vocab.json of {name}", folder, kind.from_pretrained(folder)._tokenizer, True, ["<|endoftext|>", "ab", "<|im_end|>", "<|im_start|>", *marks]
    plain = common.train("llama3", texts, 1200)
    count = plain.get_vocab_size()
    folder = saved(work / "beside", plain, tokenizer_class="PreTrainedTokenizerFast", bos_token="ab", pad_token="<pad>", extra_special_tokens=["<more>"],
                   added_tokens_decoder=decoder_entries(count, more[:1])) and work / "beside"
    # With added_tokens_decoder there, it is not read.
    (folder / "special_tokens_map.json").write_text('{"cls_token": "<cls>"}')
    yield "tokenizer.json and files beside it", folder, PreTrainedTokenizerFast.from_pretrained(folder)._tokenizer, True, ["<|endoftext|>", "ab", *marks]
    # Names that only some models have, the flags of tokens that are written as objects and listed nowhere else, and a list beside an object.
    folder = saved(work / "named", common.train("llama3", texts, 1200), tokenizer_class="PreTrainedTokenizerFast", bos_token="ab", video_token="<s>", eot_token="<tool>", extra_special_tokens={"image_token": "<more>", "audio_token": "<cls>"},
                   additional_special_tokens=["<unk>", {"__type": "AddedToken", "content": "<more>", "rstrip": True, "normalized": False, "special": True}],
                   pad_token={"__type": "AddedToken", "content": "<pad>", "lstrip": True, "rstrip": True, "normalized": False}) and work / "named"
    yield "tokenizer.json and a model's names", folder, PreTrainedTokenizerFast.from_pretrained(folder)._tokenizer, True, ["ab", " <pad> ", *marks]
    # Saved by an older transformers 4: ids alone beside tokenizer.json, whose flags stay; and a list that calls a special token none.
    older_file = common.train("llama3", texts, 1200)
    older_file.add_tokens(AWKWARD)
    for name, config in (("ids", {}), ("list", {"added_tokens_decoder": decoder_entries(older_file.token_to_id("<l>"), AWKWARD[:2]), "additional_special_tokens": ["<one>", "<lr>"]})):
        folder = saved(work / f"beside-{name}", older_file, tokenizer_class="PreTrainedTokenizerFast", **config) and work / f"beside-{name}"
        (folder / "added_tokens.json").write_text(json.dumps({t.content: older_file.token_to_id(t.content) for t in AWKWARD}))
        yield f"tokenizer.json with a {name} of tokens", folder, PreTrainedTokenizerFast.from_pretrained(folder)._tokenizer, True, [t.content for t in AWKWARD]

    # Mistral v0.3: controls of its own, Metaspace before the first part alone. In a mistral directory the file counts, not the class.
    mistral = Tokenizer.from_str(reference.to_str())
    mistral.add_special_tokens(["[INST]", "[/INST]", "[TOOL_CALLS]"])
    saved(work / "mistral", mistral, tokenizer_class="LlamaTokenizer", legacy=True)
    (work / "mistral" / "config.json").write_text('{"model_type": "mistral"}')
    yield "mistral", work / "mistral", mistral, True, ["[INST]", "[/INST]", "[INST] ", " [/INST]", "[TOOL_CALLS]", "</s>"]
    # Llama 2's and Mistral v0.1's own files: the space is part of the normalizer.
    older = Tokenizer.from_str(reference.to_str())
    older.pre_tokenizer = None
    older.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    older = Tokenizer.from_str(older.to_str())  # added tokens are normalised by the new rule
    yield "sentencepiece's BPE with a normalizer", work / "older", saved(work / "older", older), True, names

    # Gemma's, whose pre-tokenizer splits at what the normalizer has replaced.
    gemma = json.loads(older.to_str())
    gemma["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    gemma["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    yield "Gemma's kind", work / "gemma", saved(work / "gemma", Tokenizer.from_str(json.dumps(gemma))), True, names
    # GemmaTokenizer makes special tokens of pieces with the names that it has by default.
    pieces = Tokenizer(models.BPE())
    pieces.normalizer = normalizers.Replace(" ", "\u2581")
    own = ["<unk>", "<s>", "<pad>", "<bos>", "<eos>", "<mask>"]
    pieces.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=1200, special_tokens=own + [f"<0x{b:02X}>" for b in range(256)], show_progress=False))
    content = {**json.loads(pieces.to_str()), **{key: gemma[key] for key in ("normalizer", "pre_tokenizer", "decoder")}}
    content["added_tokens"], content["decoder"] = content["added_tokens"][:2], {"type": "Sequence", "decoders": gemma["decoder"]["decoders"][:3]}
    content["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    saved(work / "gemma-class", Tokenizer.from_str(json.dumps(content)), tokenizer_class="GemmaTokenizer")
    yield "GemmaTokenizer", work / "gemma-class", AutoTokenizer.from_pretrained(work / "gemma-class")._tokenizer, True, own
    # Of a family that transformers maps to another class, LlamaTokenizer builds the tokenizer anew.
    for family in ("smollm3", "granite"):
        saved(work / family, older, tokenizer_class="LlamaTokenizer", legacy=False, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
        (work / family / "config.json").write_text(json.dumps({"model_type": family}))
        yield f"LlamaTokenizer of {family}", work / family, AutoTokenizer.from_pretrained(work / family)._tokenizer, True, names
    saved(work / "code", older, tokenizer_class="CodeLlamaTokenizer", legacy=True, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    yield "CodeLlamaTokenizer", work / "code", AutoTokenizer.from_pretrained(work / "code")._tokenizer, True, names
    # The key of the class wins over the file.
    for kind, of_class in (("gpt2", "GPT2Tokenizer"), ("qwen2", "Qwen2TokenizerFast")):
        for space in (True, False):
            made = json.loads(common.train(kind, texts, 700).to_str())
            made["pre_tokenizer"].get("pretokenizers", [made["pre_tokenizer"]])[-1]["add_prefix_space"] = not space
            folder = work / f"{of_class}{space}"
            saved(folder, Tokenizer.from_str(json.dumps(made)), tokenizer_class=of_class, add_prefix_space=space)
            yield f"{of_class} with add_prefix_space {space}", folder, AutoTokenizer.from_pretrained(folder)._tokenizer, True, specials
        # It builds a tokenizer of the added tokens of the list, if there is one.
        made = common.train(kind, texts, 700)
        folder, first = work / f"{of_class} with a list", made.token_to_id("<|im_start|>")
        saved(folder, made, tokenizer_class=of_class, added_tokens_decoder=decoder_entries(first, [AddedToken("<|im_start|>", rstrip=True, normalized=False)]))
        yield folder.name, folder, AutoTokenizer.from_pretrained(folder)._tokenizer, True, specials

    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace("  ", " ")])
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    unigram.train_from_iterator(lines, trainers.UnigramTrainer(vocab_size=1200, unk_token="<unk>", special_tokens=["<s>", "</s>", "<unk>"], show_progress=False))
    unigram.add_tokens(AWKWARD)
    # The reference is read from the file, too: reading rounds the scores of the trainer, and the last bit decides between equal segmentations.
    yield "unigram", work / "unigram", Tokenizer.from_str(saved(work / "unigram", unigram).to_str()), True, names
    content = json.loads(unigram.to_str())
    content["model"]["vocab"] += [[f"<0x{b:02X}>", 0.0] for b in range(256)]
    content["model"]["byte_fallback"] = True
    content["added_tokens"] = content["added_tokens"][:2]
    # All ways to cut a run have one score: rounding decides, and <unk> in a text is a piece.
    content["model"]["vocab"] += [["\u00a4" * n, -7.123456789012345 * n] for n in range(1, 9)]
    content["pre_tokenizer"]["prepend_scheme"] = "first"
    content["pre_tokenizer"]["split"] = False
    content["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                                                           {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    fallback = Tokenizer.from_str(json.dumps(content))
    yield "unigram with bytes", work / "bytes", saved(work / "bytes", fallback), True, names + ["\u00a4" * n for n in range(9, 70)]

    awkward = common.train("qwen2", texts, 1000)
    awkward.add_tokens(AWKWARD)
    yield "awkward added tokens", work / "awkward", saved(work / "awkward", awkward), True, specials + names
    for i, pattern in enumerate((r"\b\w+\b|\W", r"[\w']+|\s+|[^\w\s]", r"\B.|\d{1,3}", r"\w+\b ?|\s\W", r"[\w\-]+", r"\p{Han}+|[\p{Arabic}\p{Hiragana}]+|\P{Latin}|(?i:[st]|re)")):
        made = common.train("gpt2", texts, 700)
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "removed" if i > 3 else "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        yield pattern, work / f"pattern{i}", saved(work / f"pattern{i}", made), True, ["x\u0301", "\u0301", "\u200d", "\u00b2", "\u2167", "\u0903", "_", "\u203f", "\u3001", "\u060c", "\u0640", "\u30fc"]
    # Granite 3's, SmolLM 2's and StarCoder's.
    for individual, use_regex in ((True, True), (True, False), (False, True), (False, False)):
        made = common.train("gpt2", texts, 700)
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual), pre_tokenizers.ByteLevel(add_prefix_space=not use_regex and individual, use_regex=use_regex)])
        folder = work / f"digits{individual}{use_regex}"
        yield f"Digits {individual} {use_regex}", folder, saved(folder, made), True, ["a  12", "0.50\n 7", "\u00b2\u00bd", "\u2167\u2168 ", "\u0663\u0664", "\u3007\u4e00", "\U0001d7d8\U0001d7d9x"]


def check_refusals(probe, work, texts):
    """What `tokenizers` reads in another way than we would is refused by name, exit code 3."""
    content = json.loads(common.train("gpt2", texts[:3], 300).to_str())
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    cases = [({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{**split, "pattern": {"Regex": p}}, content["pre_tokenizer"]]}}, "the pattern")
             for p in (r"[\W]", r"\v", r"a{,3}", r"(?m:.)", r"a{2}?", r"\xC3\xA9", r"\Qa\E", r"(?i:ss)", r"(?i)x|first", "(?i:\u00df)", r"\p{Alphabetic}", r"\pL", "(?s)" + "x\u00e9" * 99)]
    cases += [({"normalizer": {"type": "NFKC"}}, "NFKC"), ({"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}}, "regular expression"),
              ({"pre_tokenizer": {"type": "BertPreTokenizer"}}, "BertPreTokenizer"), ({"model": {**content["model"], "byte_fallback": True}}, "byte_fallback"),
              ({"added_tokens": [*content["added_tokens"], {**content["added_tokens"][0], "content": "<far>", "id": 999}]}, "but `tokenizers` gives it 30")]
    for change, reason in cases:
        (work / "refused.json").write_text(json.dumps({**content, **change}))
        done = subprocess.run([probe, work / "refused.json"], input=common.packed(["a"]), capture_output=True)
        assert done.returncode == 3 and reason in done.stderr.decode(), (change, done)
    content["added_tokens"] = [{**content["added_tokens"][0], "id": 300, "content": "\n", "normalized": True}]
    (work / "refused.json").write_text(json.dumps({**content, "normalizer": {"type": "Replace", "pattern": {"String": "\n"}, "content": ""}}))
    done = subprocess.run([probe, work / "refused.json"], input=common.packed(["a"]), capture_output=True)
    assert done.returncode == 3 and "leaves nothing of the added token" in done.stderr.decode(), done
    # What transformers replaces by the rules of a class is named.
    common.train("llama3", texts[:3], 300).save(str(saved_folder(work / "other") / "tokenizer.json"))
    (work / "other" / "config.json").write_text('{"model_type": "qwen2"}')
    done = subprocess.run([probe, work / "other"], input=common.packed(["a"]), capture_output=True)
    assert done.returncode == 0 and "by those of Qwen2Tokenizer" in done.stderr.decode(), done
    (work / "other" / "tokenizer_config.json").write_text('{"split_special_tokens": true}')
    done = subprocess.run([probe, work / "other"], input=common.packed(["a"]), capture_output=True)
    assert done.returncode == 3 and "split_special_tokens" in done.stderr.decode(), done
    # Beside a tokenizer.model the message says how that one is read.
    (work / "legacy" / "tokenizer.json").write_text("{}")
    done = subprocess.run([probe, work / "legacy"], input=common.packed(["a"]), capture_output=True)
    assert done.returncode == 3 and "read by its tokenizer.model" in done.stderr.decode(), done
    (work / "refused.json").write_text(json.dumps(content))
    done = subprocess.run([probe, work / "refused.json"], input=b"\x04\0\0\0a\xffbc", capture_output=True)
    assert done.returncode == 3 and "not UTF-8 from its byte 1 on" in done.stderr.decode(), done


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--probe", required=True)
    parser.add_argument("--slow", action="store_true")
    args = parser.parse_args()
    rng = random.Random(11)
    texts = common.ordinary_text(1 << 19 if args.slow else 1 << 16)[:60] + list(common.hostile_texts(rng, 200))
    failures = total = 0
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        for name, path, reference, decodes, tokens in shapes(work, texts):
            made = list(strings(rng, 5000 if args.slow else 300, tokens)) + ["", " ", "  a", "\u2581", " \u2581 a", "\x00", *tokens]
            if "\\p{Latin}" in name or "\\P{Latin}" in name:
                # Which letters a script has depends on the Unicode version of PCRE2, and of tokenizers.
                made = ["".join(c for c in text if unicodedata.ucd_3_2_0.category(c) != "Cn") for text in made]
            if name.startswith("Digits"):  # numbers of Unicode 17, which \p{N} of `tokenizers` 0.23.3 lacks and its Digits has
                made = [text.translate(dict.fromkeys([*range(0x11DE0, 0x11DEA), *range(0x16FF4, 0x16FF7)])) for text in made]
            if args.slow and "pattern" not in str(path):
                made += list(common.every_character(sample=True))
            theirs = reference.encode_batch(made, add_special_tokens=False)
            wrong = 0
            for text, (ids, with_specials, without), expected in zip(made, common.ours(args.probe, path, made), theirs):
                right = ids == expected.ids and (not decodes or (with_specials, without) == (
                    reference.decode(expected.ids, skip_special_tokens=False), reference.decode(expected.ids)))
                if not right and (wrong := wrong + 1) <= 3:
                    print(f"{name}: {text!r}\n  ours   {ids} {with_specials!r}\n  theirs {expected.ids} {reference.decode(expected.ids, skip_special_tokens=False)!r}"[:1500])
            print(f"{name}: {len(made)} strings, {wrong} differ")
            failures += wrong
            total += len(made)
        check_refusals(args.probe, work, texts)
    assert failures == 0, f"{failures} of {total} strings differ"
    print(f"ok: {total} strings equal")


if __name__ == "__main__":
    main()
