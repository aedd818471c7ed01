#!/usr/bin/env python3
"""`trireme tokenizer` against the sentencepiece Python package: the trainer's settings, the trained models, and the ids of unigram models with segmentations of equal score. Exit code 77 = skipped.

usage: sentencepiece_parity.py --tools PROGRAM"""
import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as proto
except ImportError as error:
    print(f"SKIPPED: {error}; scripts/setup.sh installs what this test needs")
    sys.exit(77)

LLAMA = dict(character_coverage=0.99995, byte_fallback=True, split_digits=True, allow_whitespace_only_pieces=True, normalization_rule_name="identity",
             remove_extra_whitespaces=False, unk_surface=" \u2047 ", unk_id=0, bos_id=1, eos_id=2, pad_id=-1, max_sentence_length=1 << 20)
# Fields that depend on the input's path, or that only later versions write.
NOT_COMPARED = {"input", "model_prefix", "num_threads", "enable_differential_privacy", "differential_privacy_noise_level",
                "differential_privacy_clipping_threshold", "seed_sentencepieces_file", "pretokenization_delimiter"}


def run(tools, *arguments, text=None):
    done = subprocess.run([tools, "tokenizer", *map(str, arguments)], input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"{arguments}: exit {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


def write_text(path, rng, lines):
    syllables = ["tri", "reme", "oar", "sea", "ro", "wers", "ling", "a", "the", "naïve", "strait", "ing", "s", "k", "qu"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(300)]
    text = [" ".join(rng.choices(words, weights=range(300, 0, -1), k=rng.randint(3, 14))) + f" {rng.randint(0, 999)}." for _ in range(lines)]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return text


def read_model(path):
    model = proto.ModelProto()
    model.ParseFromString(path.read_bytes())
    return model


def settings(message):
    return {field.name: str(getattr(message, field.name)) for field in message.DESCRIPTOR.fields if field.name not in NOT_COMPARED}


def check_training(tools, work, text_file):
    for kind, size in (("bpe", 420), ("unigram", 380)):
        run(tools, "train", "--input", text_file, "--vocab-size", size, "--model-type", kind, "--threads", 1, "--output", work / f"ours-{kind}.model")
        sentencepiece.SentencePieceTrainer.train(input=str(text_file), model_prefix=str(work / f"theirs-{kind}"), vocab_size=size, model_type=kind,
                                                 num_threads=1, minloglevel=2, **LLAMA)
        ours, theirs = read_model(work / f"ours-{kind}.model"), read_model(work / f"theirs-{kind}.model")
        assert settings(ours.trainer_spec) == settings(theirs.trainer_spec), (settings(ours.trainer_spec), settings(theirs.trainer_spec))
        assert settings(ours.normalizer_spec) == settings(theirs.normalizer_spec)
        assert len(ours.pieces) == len(theirs.pieces) == size
        assert [(p.piece, p.type) for p in ours.pieces[:259]] == [(p.piece, p.type) for p in theirs.pieces[:259]]
        if kind == "bpe":  # same algorithm in all versions; unigram training changed in 0.2.0
            assert [(p.piece, p.score) for p in ours.pieces] == [(p.piece, p.score) for p in theirs.pieces]


def check_ties(tools, work, lines):
    """Scores on a coarse grid: many segmentations have the same sum up to float rounding."""
    for name, options in {"bytes": {}, "unknown": dict(byte_fallback=False, character_coverage=0.98, user_defined_symbols=["<sep>", "oars", "oa"])}.items():
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_prefix=str(work / name), vocab_size=700 if name == "bytes" else 330,
                                                 model_type="unigram", hard_vocab_limit=False, minloglevel=2, num_threads=1, **{**LLAMA, **options})
        for grid in ("tenths", "lengths", "as trained"):
            model = read_model(work / f"{name}.model")
            for piece in model.pieces:
                if piece.type == proto.ModelProto.SentencePiece.NORMAL and grid != "as trained":
                    piece.score = round(piece.score, 1) if grid == "tenths" else -0.1 * len(piece.piece)
            path = work / "grid.model"
            path.write_bytes(model.SerializeToString())
            theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
            texts = lines[:600] + ["unseen: ☃☃ and ☃ 中文", "oarsoa<sep>oars", "<sep>", "<0x41> is no byte", " two  spaces "]
            ours = [list(map(int, row.split())) for row in run(tools, "encode", "--model", path, "-", text="\n".join(texts) + "\n").splitlines()]
            wrong = [(text, a, b) for text, a, b in zip(texts, ours, theirs.encode(texts), strict=True) if a != b]
            assert not wrong, f"{name}, {grid}: {len(wrong)} of {len(texts)} differ: {wrong[0]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        lines = write_text(work / "text.txt", random.Random(7), 900)
        check_training(args.tools, work, work / "text.txt")
        check_ties(args.tools, work, lines)
    print("ok")


if __name__ == "__main__":
    main()
