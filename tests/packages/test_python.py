"""Risk: the Python module, installed from its wheel, says something else than the command, or fails without a sentence."""

import json
import re

import pytest

BEGINNING = "import json, sys\nfrom sparkinfer import Error, Model\nmodel = Model(sys.argv[1], threads=1)\n"


@pytest.fixture(scope="module")
def python(installed_wheel, clean):
    """Runs lines behind `model = Model(…)`; what they print as JSON."""
    def run(lines, *arguments):
        return json.loads(clean(installed_wheel / "python", "-c", BEGINNING + lines, *arguments))

    return run


def test_answers_are_those_of_run(python, clean, installed_wheel, tiny):
    options = ("-n", 12, "--temp", 0, "--json", "-p", "Hello you")
    chat, raw = (json.loads(clean(installed_wheel / "sparkinfer", "run", tiny, *options, *more)) for more in ((), ("--raw",)))
    found = python("""
answers = []
for prompt, raw in (("Hello you", False), ([{"role": "user", "content": "Hello you"}], False), ("Hello you", True),
                    (model.tokenize("Hello you"), False)):
    stream = model.stream(prompt, raw=raw, max_tokens=12, temperature=0)
    before = stream.finish_reason
    pieces = list(stream)
    answers.append(["".join(pieces), stream.tokens, stream.finish_reason, before, all(pieces)])
    assert model.generate(prompt, raw=raw, max_tokens=12, temperature=0) == answers[-1][0]
print(json.dumps(answers))""", tiny)
    for answer, run in zip(found, (chat, chat, raw, raw), strict=True):
        assert answer == [run["text"], run["token_ids"], run["finish_reason"], None, True]


def test_sampling_options_reach_the_engine(python, clean, installed_wheel, tiny):
    run = json.loads(clean(installed_wheel / "sparkinfer", "run", tiny, "-n", 20, "--json", "-p", "Hello", "--seed", 5, "--temp", 1.5,
                           "--top-k", 7, "--top-p", 0.9, "--min-p", 0.01, "--repeat-penalty", 1.2, "--repeat-last-n", -1,
                           "--presence-penalty", 0.5, "--frequency-penalty", -0.5))
    found = python("""
options = dict(max_tokens=20, seed=5, temperature=1.5, top_k=7, top_p=0.9, min_p=0.01, repeat_penalty=1.2, repeat_last_n=-1,
               presence_penalty=0.5, frequency_penalty=-0.5)
whole = model.generate("Hello", **options)
middle = whole[len(whole) // 2:][:2]
print(json.dumps([whole, model.generate("Hello", **options, stop=middle) == whole[:whole.index(middle)],
                  model.stream("Hello", logit_bias={65: 1e9}, max_tokens=3).__next__()]))""", tiny)
    assert found[0] == run["text"]
    assert found[1] and set(found[2]) == {found[2][0]}


def test_logits_are_those_of_perplexity(python, clean, installed_wheel, tiny, tmp_path):
    numpy = pytest.importorskip("numpy")
    ids = python('print(json.dumps(model.tokenize("The quick brown fox jumps over the lazy dog")))', tiny)
    numpy.save(tmp_path / "ids.npy", numpy.array(ids, numpy.int32))
    clean(installed_wheel / "sparkinfer", "perplexity", tiny, "--tokens", tmp_path / "ids.npy", "--logits-out", tmp_path / "theirs.npy")
    shape = python(f"""
import numpy
rows = model.logits(numpy.array({ids}))
numpy.save({str(tmp_path / 'ours.npy')!r}, rows)
assert (model.logits("The quick brown fox jumps over the lazy dog") == rows).all()
print(json.dumps([list(rows.shape), rows.dtype.name, model.vocab]))""", tiny)
    assert shape == [[len(ids), 512], "float32", 512]
    ours, theirs = (numpy.load(tmp_path / f"{name}.npy") for name in ("ours", "theirs"))
    assert numpy.array_equal(ours[:len(theirs)].reshape(theirs.shape), theirs)


def test_tokens_come_back_as_text(python, clean, installed_wheel, tiny):
    text = "naïve 日本 <|im_end|> tail"
    found = python(f"""
text = {text!r}
print(json.dumps([model.tokenize(text), model.detokenize(model.tokenize(text, parse_special=False)),
                  model.detokenize(model.tokenize(text)), model.detokenize(model.tokenize(text), keep_control=True)]))""", tiny)
    ids = json.loads(clean(installed_wheel / "sparkinfer", "tokenize", tiny, "--json", "-p", text))["token_ids"]
    assert found[0] == ids
    assert found[1] == text and found[3] == text
    assert "<|im_end|>" not in found[2]


@pytest.mark.parametrize(("line", "kind", "words"), [
    ("Model('/no/such/file')", "bad_input", "/no/such/file"),
    ("Model(sys.argv[1], backend='abacus')", "usage", "abacus"),
    ("Model(sys.argv[1], ctx=10**6)", "usage", "context is 1000000"),
    ("Model(sys.argv[1], ctx=2**40)", "ValueError", "ctx is 1099511627776"),
    ("Model('a\\0b')", "ValueError", "NUL"),
    ("model.generate('x', top_p=3)", "usage", "top_p is 3"),
    ("model.generate('x', max_tokens=0)", "usage", "max_tokens is 0"),
    ("model.generate('x', seed=-1)", "ValueError", "seed is -1"),
    ("model.generate('x', stop='a\\0')", "ValueError", "NUL"),
    ("model.generate([])", "bad_input", "empty"),
    ("model.generate([5, 512])", "bad_input", "id 512"),
    ("model.generate([2**40])", "OverflowError", ""),
    ("model.generate([{'role': 'user'}])", "bad_input", ""),
    ("model.logits([1.5])", "TypeError", ""),
    ("model.logits([])", "bad_input", "no tokens"),
    ("model.logits([1] * 1025)", "resources", "1025 tokens"),
    ("model.detokenize([-1])", "bad_input", "id -1"),
    ("(model.close(), model.generate('x'))", "ValueError", "closed"),
])
def test_bad_arguments_are_exceptions_with_a_sentence(python, tiny, line, kind, words):
    found = python(f"""
try:
    {line}
    print("null")
except Error as error:
    print(json.dumps([error.kind, str(error)]))
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))""", tiny)
    assert found is not None and found[0] == kind and words in found[1], found


def test_threads_and_closing(python, tiny):
    """Streams of several threads on one model, one left half-way, one that outlives its model."""
    found = python("""
import gc, threading
def greedy(): return model.generate("Hello", max_tokens=16, temperature=0)
alone, results = greedy(), []
threads = [threading.Thread(target=lambda: results.append(greedy())) for _ in range(4)]
half = model.stream("Hello", max_tokens=200, temperature=0)
next(half)
[t.start() for t in threads]; [t.join() for t in threads]
del half
stream = model.stream("Hello", max_tokens=16, temperature=0)
with model: pass
del model
gc.collect()
print(json.dumps([results == [alone] * 4, "".join(stream) == alone]))""", tiny)
    assert found == [True, True]


def test_the_example_of_the_docs_runs(installed_wheel, clean, tiny, request):
    page = (request.config.rootpath / "docs" / "embedding.md").read_text()
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1)
    lines = clean(installed_wheel / "python", "-c", example, cwd=tiny.parent).splitlines()
    assert any(re.fullmatch(r"(stop|length) after \d+ tokens", line) for line in lines)
    assert lines[-1] == "usage · top_p is 3, expected a number in (0, 1]"
    assert "usage · top_p is 3, expected a number in (0, 1]" in page
