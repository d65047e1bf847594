"""Independent tokenizers over the same vocabularies: Python's `tokenizers` (regexes by Oniguruma), tiktoken, llama.cpp."""

import hashlib
import json
import struct
from pathlib import Path

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?WORD+|\p{N}DIGITS| ?[^\sNOTWORD\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")


def pattern(word, not_word, digits=""):
    return QWEN.replace("NOTWORD", not_word).replace("WORD", word).replace("DIGITS", digits)


PATTERNS = {
    "qwen35": pattern(r"[\p{L}\p{M}]", r"\p{L}\p{M}"),
    "qwen2": pattern(r"\p{L}", r"\p{L}"),
    "llama-bpe": pattern(r"\p{L}", r"\p{L}", "{1,3}"),
}
SCALARS = "BbHhIif?"    # struct codes of the value types 0 to 7
SCALARS_64 = {10: "Q", 11: "q", 12: "d"}


def read_vocabulary(path):
    """(pre, tokens, kinds, merges) of a GGUF. A plain reader of its key-value part: the gguf package takes 40 s for
    250,000 tokens."""
    data = Path(path).read_bytes()
    at = 16

    def number(code):
        nonlocal at
        at += struct.calcsize("<" + code)
        return struct.unpack_from("<" + code, data, at - struct.calcsize("<" + code))[0]

    def string():
        nonlocal at
        size = number("Q")
        at += size
        return data[at - size : at].decode()

    def value(kind):
        if kind == 8:
            return string()
        if kind == 9:
            item, count = number("I"), number("Q")
            return [value(item) for _ in range(count)]
        return number(SCALARS[kind] if kind < 8 else SCALARS_64[kind])

    fields = {}
    for _ in range(number("Q")):
        key = string()
        fields[key] = value(number("I"))
    return tuple(fields[f"tokenizer.ggml.{key}"] for key in ("pre", "tokens", "token_type", "merges"))


def hugging_face(path):
    """The same vocabulary as a tokenizer.json, as Hugging Face's converters write it: (tokenizer, JSON text)."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pre, tokens, kinds, merges = read_vocabulary(path)
    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre == "llama-bpe"))
    if pre == "smollm":
        first, bytes_ = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        first = pre_tokenizers.Split(Regex(PATTERNS[pre]), "isolated")
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_])
    if pre.startswith("qwen"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    for kind, special in ((3, True), (4, False)):
        added = [AddedToken(t, special=special, normalized=False) for t, k in zip(tokens, kinds) if k == kind]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    return tokenizer, json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False)


def llama_cpp(path):
    """A function (text, specials) → ids over llama.cpp; needs the package llama-cpp-python (golden script only)."""
    import llama_cpp as lib

    lib.llama_backend_init()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    vocab = lib.llama_model_get_vocab(model)

    def encode(text, specials):
        data = text.encode()
        out = (lib.llama_token * (len(data) + 8))()
        count = lib.llama_tokenize(vocab, data, len(data), out, len(out), False, specials)
        assert count >= 0
        return list(out[:count])

    return encode


COUNT = 10_000    # strings each oracle sees


def digest(ids):
    """Four bytes that tell one list of ids from another."""
    packed = struct.pack(f"<{len(ids)}i", *ids)
    return int.from_bytes(hashlib.sha256(packed).digest()[:4], "little")
