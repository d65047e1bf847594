"""The 512-token byte-level BPE tokenizer of the tiny models: 256 bytes, 253 merges learned from a short text, 3 control tokens.

It has no padding rows, so that every id may be sampled. The pre-tokeniser is the architecture's own: smollm for llama,
qwen2 for qwen3 and qwen3moe, qwen35 for qwen35 and qwen35moe.
"""

from collections import Counter

_TEXT = """the engine reads the weights once and then answers one token after another and the tokens stream to the reader while
the cache grows a page at a time there is no magic in it only memory and arithmetic in a fixed order a matrix times a vector a norm
a softmax and a sum the first machines had rooms of their own and spoke in cards and lamps the ones that followed were smaller and
faster and many more people could use them today a single board does in a second what a building did in a year and still we wait
because we always ask for more than the machine can give so the work goes on counting bytes moving them less often and keeping
them near to where they are needed the quick brown fox jumps over the lazy dog and finds that every other sentence has been said"""

_CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_PRE = {"llama": "smollm", "qwen3": "qwen2", "qwen3moe": "qwen2", "qwen35": "qwen35", "qwen35moe": "qwen35"}
_QWEN_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?LETTER+|\p{N}| ?[^\s\p{L}NOT_MARK\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_alphabet():
    """GPT-2's printable stand-in for each of the 256 byte values."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256)]


def learn_merges(count):
    """The first count merges of BPE over the text's words: the most frequent pair first, ties by the pair itself."""
    words = Counter(_TEXT.split())
    split = {word: ["\u0120", *word] for word in words}
    merges = []
    while len(merges) < count:
        pairs = Counter()
        for word, symbols in split.items():
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += words[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for symbols in split.values():
            for at in range(len(symbols) - 2, -1, -1):
                if tuple(symbols[at : at + 2]) == best:
                    symbols[at : at + 2] = ["".join(best)]
    return merges


class TinyTokenizer:
    """The vocabulary and its two faces: the Hugging Face files, and what the converter writes into GGUF metadata."""

    def __init__(self, arch):
        self.pre = _PRE[arch]
        self.merges = learn_merges(512 - 256 - len(_CONTROL))
        self.tokens = byte_alphabet() + ["".join(pair) for pair in self.merges] + _CONTROL
        assert len(set(self.tokens)) == 512, "two merges made the same token"
        self.has_bos = arch == "llama"

    def _pre_tokenizer(self):
        level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": self.pre == "smollm",
        }
        if self.pre == "smollm":
            return {
                "type": "Sequence",
                "pretokenizers": [{"type": "Digits", "individual_digits": True}, level],
            }
        with_marks = self.pre == "qwen35"
        pattern = _QWEN_PATTERN.replace("LETTER", r"[\p{L}\p{M}]" if with_marks else r"\p{L}")
        pattern = pattern.replace("NOT_MARK", r"\p{M}" if with_marks else "")
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        return {"type": "Sequence", "pretokenizers": [split, level]}

    def hf_files(self):
        """{file name: JSON content} of tokenizer.json and tokenizer_config.json."""
        first = 512 - len(_CONTROL)
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        tokenizer = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": first + i, "content": token, **flags} for i, token in enumerate(_CONTROL)
            ],
            "normalizer": None if self.pre == "smollm" else {"type": "NFC"},
            "pre_tokenizer": self._pre_tokenizer(),
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {token: i for i, token in enumerate(self.tokens[:first])},
                "merges": [list(pair) for pair in self.merges],
            },
        }
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 1024,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "added_tokens_decoder": {
                str(first + i): {"content": token, **flags} for i, token in enumerate(_CONTROL)
            },
            "chat_template": _TEMPLATE,
        }
        if self.has_bos:
            config["bos_token"] = "<|im_start|>"
        return {"tokenizer.json": tokenizer, "tokenizer_config.json": config}

    def gguf_values(self):
        """[(key, kind, value)] with kind "string", "u32", "i32" or "bool"."""
        result = [
            ("model", "string", "gpt2"),
            ("pre", "string", self.pre),
            ("tokens", "string", self.tokens),
            ("token_type", "i32", [1] * (512 - len(_CONTROL)) + [3] * len(_CONTROL)),
            ("merges", "string", [" ".join(pair) for pair in self.merges]),
        ]
        if self.has_bos:
            result.append(("bos_token_id", "u32", 510))
        result += [
            ("eos_token_id", "u32", 511),
            ("padding_token_id", "u32", 509),
            ("add_bos_token", "bool", False),
        ]
        return [("tokenizer.ggml." + key, kind, value) for key, kind, value in result] + [
            ("tokenizer.chat_template", "string", _TEMPLATE)
        ]


def tiny_tokenizer(arch):
    return TinyTokenizer(arch)
