"""A synthetic byte-level BPE tokenizer of any vocabulary size, and its Engram token classes."""

import unicodedata

SPECIAL = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
# What the chat format needs (encoding.md §3), then the two that end every vocabulary.
CHAT = ["<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜",
        "<｜latest_reminder｜>"]
TAIL = CHAT + ["<｜deepseek_image｜>", "<｜place▁holder▁no▁0｜>"]
WHITE_SPACE = " \t\n\x0b\x0c\r\x85\xa0"


def byte_alphabet():
    """The letter that stands for each byte in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + len(letters) - len(printable))
    return letters


def candidate_merges(space, wanted):
    """Merges in the order of the vocabulary: letter pairs, then triples, then quadruples."""
    low = [chr(i) for i in range(97, 123)]
    merges = [(space, a) for a in low] + [(a, b) for a in low for b in low]
    merges += [(space, a + b) for a in low for b in low]
    merges += [(a + b, d) for a in low for b in low for d in low]
    merges += [(space, a + b + d) for a in low for b in low for d in low]
    if wanted > len(merges):
        merges += [(a + b + d, e) for a in low for b in low for d in low for e in low]
    return merges[:wanted]


def make_tokenizer(vocab_size):
    """tokenizer.json, the tokens in order of id, and the text of each."""
    letters = byte_alphabet()
    num_merges = vocab_size - len(SPECIAL) - len(letters) - len(TAIL)
    if num_merges < 0:
        raise SystemExit("the vocabulary is too small")
    merges = candidate_merges(letters[ord(" ")], num_merges)
    tokens = SPECIAL + [letters[b] for b in range(256)] + [a + b for a, b in merges] + TAIL
    if len(tokens) != vocab_size or len(set(tokens)) != vocab_size:
        raise SystemExit("the vocabulary is too large")
    byte_of = {letter: byte for byte, letter in letters.items()}
    marked = set(SPECIAL + TAIL)
    texts = [token if token in marked else
             bytes(byte_of[letter] for letter in token).decode("utf-8", "replace")
             for token in tokens]
    # Special tokens stand in the model's vocabulary too: some libraries ignore the ids of added
    # tokens that do not.
    added = [dict(id=i, content=token, single_word=False, lstrip=False, rstrip=False,
                  normalized=False, special=True)
             for i, token in enumerate(tokens) if token in marked]
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None,
                 end_of_word_suffix=None, fuse_unk=False, byte_fallback=False,
                 vocab={token: i for i, token in enumerate(tokens)},
                 merges=["%s %s" % merge for merge in merges])
    tokenizer = dict(version="1.0", truncation=None, padding=None, added_tokens=added,
                     normalizer=None, pre_tokenizer=level, post_processor=None,
                     decoder=dict(level, add_prefix_space=True), model=model)
    return tokenizer, tokens, texts


def normalized(text):
    """The key under which two token texts are one class (model.md §10.1)."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    text = "".join(ch for ch in text if unicodedata.category(ch) != "Mn").lower()
    out = ""
    for ch in text:
        if ch not in " \t\r\n":
            out += ch
        elif not out.endswith(" "):
            out += " "
    return " " if out == " " else out.strip(WHITE_SPACE)


def token_classes(tokens, texts):
    """The class of every token and the number of classes."""
    classes, of_token = {}, []
    for token, text in zip(tokens, texts):
        key = token if "\ufffd" in text else normalized(text) or text
        of_token.append(classes.setdefault(key, len(classes)))
    return of_token, len(classes)
