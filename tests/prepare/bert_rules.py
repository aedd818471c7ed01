"""The rules of BERT's data preparation in simple Python: tokens, sentence pairs, masked words.

It is slow, because simplicity is more important here: it shares nothing with the C++ code, and each rule is written where it is applied.
"""
import random
import unicodedata

CJK = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
       (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]


# ---- tokens

def dropped(c):
    return ord(c) in (0, 0xFFFD) or c not in "\t\n\r" and unicodedata.category(c) in ("Cc", "Cf")


def blank(c):
    return c in " \t\n\r" or unicodedata.category(c) == "Zs"


def punctuation(c):
    return (33 <= ord(c) <= 47 or 58 <= ord(c) <= 64 or 91 <= ord(c) <= 96 or 123 <= ord(c) <= 126
            or unicodedata.category(c).startswith("P"))


def fold(word):
    return "".join(c for c in unicodedata.normalize("NFD", word.lower()) if unicodedata.category(c) != "Mn")


class Tokenizer:
    def __init__(self, path):
        self.vocab = {}
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file):
                self.vocab[line.strip()] = number
        self.words = list(self.vocab)

    def pieces(self, word):
        if len(word) > 200:
            return ["[UNK]"]
        result, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in self.vocab:
                    break
            else:
                return ["[UNK]"]
            result.append(piece)
            start = end
        return result

    def tokenize(self, line):
        text = ""
        for c in line:
            if dropped(c):
                continue
            if any(a <= ord(c) <= b for a, b in CJK):
                text += f" {c} "
            else:
                text += " " if blank(c) else c
        tokens = []
        for word in text.split():
            part = ""
            for c in fold(word):
                if punctuation(c):
                    if part:
                        tokens += self.pieces(part)
                    tokens += self.pieces(c)
                    part = ""
                else:
                    part += c
            if part:
                tokens += self.pieces(part)
        return tokens


def read_documents(path, tokenizer):
    documents = [[]]
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if not line:
                documents.append([])
            tokens = tokenizer.tokenize(line)
            if tokens:
                documents[-1].append(tokens)
    return [document for document in documents if document]


# ---- instances

def make_pair(documents, index, chunk, target, rng):
    """Segments A and B of a chunk of sentences, whether B is random, and how many sentences of the chunk were used."""
    cut = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
    a = [token for sentence in chunk[:cut] for token in sentence]
    if len(chunk) > 1 and rng.random() >= 0.5:
        return a, [token for sentence in chunk[cut:] for token in sentence], False, len(chunk)
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != index:
            break
    start = rng.randint(0, len(documents[other]) - 1)
    b = []
    for sentence in documents[other][start:]:
        b += sentence
        if len(b) >= target - len(a):
            break
    return a, b, True, cut


def make_instance(a, b, random_next, tokenizer, options, rng):
    a, b = list(a), list(b)
    while len(a) + len(b) > options.seq_length - 3:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()
    tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
    candidates = [i for i, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    rng.shuffle(candidates)
    count = min(options.max_predictions, max(1, int(round(len(tokens) * options.masked_lm_prob))))
    masked = list(tokens)
    for i in candidates[:count]:
        if rng.random() < 0.8:
            masked[i] = "[MASK]"
        elif rng.random() >= 0.5:
            masked[i] = tokenizer.words[rng.randint(0, len(tokenizer.words) - 1)]
    positions = sorted(candidates[:count])
    return {
        "input_ids": [tokenizer.vocab[token] for token in masked],
        "segment_ids": [0] * (len(a) + 2) + [1] * (len(b) + 1),
        "masked_lm_positions": positions,
        "masked_lm_ids": [tokenizer.vocab[tokens[i]] for i in positions],
        "next_sentence_labels": int(random_next),
    }


def make_instances(path, tokenizer, options):
    rng = random.Random(options.seed)
    documents = read_documents(path, tokenizer)
    rng.shuffle(documents)
    instances = []
    for _ in range(options.dupe_factor):
        for index, document in enumerate(documents):
            target = options.seq_length - 3
            if rng.random() < options.short_seq_prob:
                target = rng.randint(2, options.seq_length - 3)
            begin = 0
            while begin < len(document):
                end = begin + 1
                while end < len(document) and sum(map(len, document[begin:end])) < target:
                    end += 1
                a, b, random_next, used = make_pair(documents, index, document[begin:end], target, rng)
                instances.append(make_instance(a, b, random_next, tokenizer, options, rng))
                begin += used
    rng.shuffle(instances)
    return instances
