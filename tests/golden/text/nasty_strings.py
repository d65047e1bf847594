"""Strings that tokenizers stumble over, the same ones for the same seed everywhere: splitmix64, no `random`.

Kinds: random code points of many blocks, white space and line ends, contractions, digits, code, words, text around
special tokens, repeated characters, combining marks, and (once through) single code points.
"""

from itertools import accumulate

MASK = (1 << 64) - 1


class Random:
    """splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators)."""

    def __init__(self, seed):
        self.state = seed & MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return self.next() % n

    def choice(self, items):
        return items[self.below(len(items))]


# (weight, first, last): blocks that hold letters, marks, numbers, symbols and gaps of all kinds.
BLOCKS = [
    (30, 0x20, 0x7E), (4, 0x00, 0x1F), (10, 0xA0, 0x17F), (3, 0x180, 0x24F), (4, 0x300, 0x36F), (4, 0x370, 0x3FF),
    (5, 0x400, 0x4FF), (3, 0x590, 0x5FF), (5, 0x600, 0x6FF), (5, 0x900, 0x97F), (3, 0xE00, 0xE7F), (2, 0x1100, 0x11FF),
    (2, 0x1680, 0x169F), (2, 0x1E00, 0x1EFF), (4, 0x2000, 0x206F), (3, 0x2070, 0x218F), (3, 0x2190, 0x2BFF),
    (6, 0x3000, 0x30FF), (6, 0x4E00, 0x9FFF), (4, 0xAC00, 0xD7A3), (1, 0xE000, 0xF8FF), (2, 0xF900, 0xFAFF),
    (2, 0xFB00, 0xFDFF), (2, 0xFE00, 0xFE6F), (3, 0xFF00, 0xFFEF), (2, 0x10000, 0x1039F), (2, 0x1D400, 0x1D7FF),
    (6, 0x1F300, 0x1FAFF), (2, 0x20000, 0x2A6DF), (1, 0xE0000, 0xE01EF), (1, 0x100000, 0x10FFFD),
]
BLOCK_SUMS = list(accumulate(weight for weight, _, _ in BLOCKS))
SPACES = [" ", " ", " ", "  ", "\t", "\n", "\n", "\r\n", "\r", "\u00a0", "\u2003", "\u3000", "\u2028", "\u2029", "\u0085",
          "\u000b", "\u000c", "\u1680", "\u202f", "\u205f", "\u200b", "\ufeff", "\u001c", "\u180e"]
TAILS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'rE", "'ve", "'Ve", "'m", "'M", "'ll", "'LL", "'lL", "'d", "'D", "'",
         "\u2019s", "'\u017f", "'x", "''s", "'l", "'r", "'v", "'11"]
WORDS = ["the", "The", "THE", "of", "straße", "naïve", "Café", "кошка", "Ελλάδα", "今日は", "世界", "안녕", "مرحبا", "שלום",
         "नमस्ते", "ไทย", "don", "I", "we", "internationalization", "x", "Ω", "ﬁne", "Å", "e\u0301", "o\u0308\u0323",
         "1st", "v2", "snake_case", "camelCase", "http://a.b/c?d=e&f", "user@example.org", "\U0001f469\u200d\U0001f4bb",
         "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "ʻokina", "Ⅷ", "½", "٣٤٥", "१२३", "𝟘𝟙", "zero\u200bwidth"]
CODE = ["def f(x):\n", "    return x\n", "\t\tif (a&&b) {", "}\n\n\n", "/* c */", "// é", "#include <x.h>\r\n", "a[i]+=1;",
        "=>", "!==", "...", "```python\n", "<div class=\"a\">", "</div>", "{{ x }}", "{%- if -%}", "\\n", "0x1F", "1e-5",
        "$$\\alpha$$", "a->b::c", "'''", '"""', "--", "==", "\n\n", "\n \n", " \n", "\r\n\r\n"]
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|", "|im_end|>", "<|", "|>", "<think>", "</think>",
            "<tool_call>", "</tool_call>", "<tool_response>", "<|vision_start|>", "<|eot_id|>", "<|begin_of_text|>",
            "<repo_name>", "<file_sep>", "<|im_start|>user\n", "<s>", "</s>", "<0x0A>", "<|im_<|im_end|>start|>"]
SINGLES = list(range(0x20, 0x250)) + list(range(0x300, 0x370)) + list(range(0x2000, 0x2070)) + list(range(0x3000, 0x3100))


def code_point(r):
    at = r.below(BLOCK_SUMS[-1])
    _, first, last = BLOCKS[next(i for i, total in enumerate(BLOCK_SUMS) if at < total)]
    return chr(first + r.below(last - first + 1))


def number(r):
    return "".join(chr(48 + r.below(10)) for _ in range(1 + r.below(8)))


def piece(r, kind):
    if kind == 0:
        return "".join(code_point(r) for _ in range(1 + r.below(12)))
    if kind == 1:
        return "".join(r.choice(SPACES) for _ in range(1 + r.below(5)))
    if kind == 2:
        return r.choice(WORDS) + r.choice(TAILS) + r.choice(["", " ", "x", "S", "\n"])
    if kind == 3:
        return r.choice(["", " ", "-", "$"]) + number(r) + r.choice(["", ".", ",", "%", "th", " "])
    if kind == 4:
        return r.choice(CODE)
    if kind == 5:
        return r.choice([" ", ""]) + r.choice(WORDS)
    if kind == 6:
        return r.choice(SPECIALS)
    if kind == 7:
        return r.choice([code_point(r), r.choice(SPACES), "a", "=", "0"]) * (1 + r.below(40))
    return r.choice(WORDS) + "".join(chr(0x300 + r.below(0x70)) for _ in range(1 + r.below(3)))


def strings(count, seed=1):
    """`count` strings, none with surrogates."""
    r = Random(seed)
    for index in range(count):
        if index < len(SINGLES):
            yield chr(SINGLES[index])
            continue
        kinds = [0] if r.below(8) == 0 else list(range(9))
        yield "".join(piece(r, r.choice(kinds)) for _ in range(1 + r.below(10)))
