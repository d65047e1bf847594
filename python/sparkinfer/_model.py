"""Model and Stream, over the functions of _library."""

import array
import ctypes
import json
import os
from ctypes import byref, c_int32, c_size_t, c_void_p

from . import _library
from ._library import FROM_MODEL, call, function


def _array(ids):
    """Ids and how many; OverflowError and TypeError for what is no int32."""
    ids = array.array("i", ids)
    return (c_int32 * len(ids))(*ids), len(ids)


def _integer(name, value, least=-2**31, most=2**31 - 1):
    """ctypes would cut it to its low bits in silence."""
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, expected a whole number from {least} to {most}")
    return value


def _ids(name, *arguments):
    """What a function gives that fills a buffer of ids: first how many there are, then the ids."""
    count = c_size_t()
    call(name, *arguments, None, 0, byref(count))
    ids = (c_int32 * count.value)()
    call(name, *arguments, ids, count.value, byref(count))
    return list(ids)


def _number(value):
    return FROM_MODEL if value is None else value


def _count(name, value):
    return FROM_MODEL if value is None else _integer(name, value)


def _generate_options(max_tokens=-1, temperature=None, top_k=None, top_p=None, min_p=None, repeat_penalty=None,
                      repeat_last_n=None, presence_penalty=0.0, frequency_penalty=0.0, seed=None, stop=(),
                      logit_bias=None):
    stops = [s.encode() for s in ([stop] if isinstance(stop, str) else stop)]
    if any(b"\0" in s for s in stops):
        raise ValueError("a stop string has a NUL, expected text without one")
    biases = [_library.LogitBias(_integer("a token of logit_bias", token), bias)
              for token, bias in (logit_bias or {}).items()]
    options = _library.GenerateOptions(
        ctypes.sizeof(_library.GenerateOptions), _integer("max_tokens", max_tokens), _count("top_k", top_k),
        _count("repeat_last_n", repeat_last_n), _number(temperature), _number(top_p), _number(min_p),
        _number(repeat_penalty), presence_penalty, frequency_penalty, seed is not None,
        _integer("seed", seed or 0, 0, 2**64 - 1))
    options.stop, options.stop_count = (ctypes.c_char_p * len(stops))(*stops), len(stops)
    options.logit_bias, options.logit_bias_count = (_library.LogitBias * len(biases))(*biases), len(biases)
    return options


class _Handle:
    """Owns a handle of the library; freed once, by close() or with the object."""

    _free = ""
    _pointer = None

    def _live(self):
        if self._pointer is None:
            raise ValueError(f"the {type(self).__name__.lower()} is closed")
        return self._pointer

    def close(self):
        """Frees what it holds. May be called twice; nothing else may be called afterwards."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            function(self._free)(pointer)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __del__(self):
        self.close()


class Stream(_Handle):
    """An answer under way: an iterator over pieces of text, each of whole characters. One thread at a time."""

    _free = "stream_free"

    def __init__(self, model, ids, options):
        pointer = c_void_p()
        call("stream_start", model, *_array(ids), byref(options), byref(pointer))
        self._pointer = pointer

    def __iter__(self):
        return self

    def __next__(self):
        text, size = c_void_p(), c_size_t()
        # A step that gave no text yet returns here, so that Ctrl-C is heard while a long prompt is read.
        while call("stream_next", self._live(), byref(text), byref(size)):
            if size.value:
                return ctypes.string_at(text, size.value).decode()
        raise StopIteration

    @property
    def tokens(self):
        """The token ids so far, without the end token."""
        count = c_size_t()
        ids = function("stream_tokens")(self._live(), byref(count))
        return ids[:count.value] if count.value else []

    @property
    def finish_reason(self):
        """"stop" (an end token or a stop string), "length", "error"; None while it is under way."""
        name = function("stream_finish")(self._live()).decode()
        return None if name == "none" else name


class Model(_Handle):
    """A model, ready to compute. Any thread.

    path        a GGUF (of a split one: its first file), or a folder of safetensors
    backend     "auto" (the GPU where one can be used), "cpu" or "cuda"
    ctx         most tokens of prompt and answer; None: the model's own, as far as memory reaches
    threads     where a CPU computes; None: one a core
    sequences   answers computed at once; others wait
    """

    _free = "model_free"

    def __init__(self, path, *, backend="auto", ctx=None, threads=None, sequences=1):
        name = os.fsencode(path)
        if b"\0" in name:
            raise ValueError("the path has a NUL, expected one without")
        options = _library.LoadOptions(ctypes.sizeof(_library.LoadOptions), backend.encode(),
                                       _integer("threads", threads or 0), _integer("ctx", ctx or 0),
                                       _integer("sequences", sequences))
        pointer = c_void_p()
        call("model_load", name, byref(options), byref(pointer))
        self._pointer = pointer

    @property
    def vocab(self):
        """Ids are 0 … vocab - 1; the width of a row of logits."""
        return function("model_vocab")(self._live())

    @property
    def ctx(self):
        """Most tokens of prompt and answer."""
        return function("model_context")(self._live())

    @property
    def backend(self):
        """"cpu" or "cuda"."""
        return function("model_backend")(self._live()).decode()

    def tokenize(self, text, *, add_special=True, parse_special=True):
        """Token ids of a text. add_special: with what the file asks to put around it; parse_special: control tokens in it
        are recognised."""
        flags = _library.ADD_SPECIAL * bool(add_special) | _library.PARSE_SPECIAL * bool(parse_special)
        data = text.encode()
        return _ids("tokenize", self._live(), data, len(data), flags)

    def tokenize_chat(self, messages):
        """Token ids of a conversation in the model's chat template, up to where its answer begins."""
        data = json.dumps(messages).encode()
        return _ids("tokenize_chat", self._live(), data, len(data))

    def detokenize(self, ids, *, keep_control=False):
        """The text of token ids; control tokens are left out unless kept, incomplete UTF-8 becomes U+FFFD."""
        flags = _library.KEEP_CONTROL * bool(keep_control)
        array, count = _array(ids)
        size = c_size_t()
        call("detokenize", self._live(), array, count, flags, None, 0, byref(size))
        text = ctypes.create_string_buffer(size.value + 1)
        call("detokenize", self._live(), array, count, flags, text, size.value, byref(size))
        return text.raw[:size.value].decode()

    def stream(self, prompt, *, raw=False, **options):
        """The answer to a prompt (see the module) as a Stream. Options, each None: as the model's file suggests:
        temperature, top_k, top_p, min_p, repeat_penalty, repeat_last_n; and max_tokens (-1: to an end token),
        presence_penalty, frequency_penalty, seed, stop (a string or several), logit_bias ({id: added})."""
        return Stream(self._live(), self._prompt(prompt, raw), _generate_options(**options))

    def generate(self, prompt, *, raw=False, **options):
        """The whole answer; options as of stream()."""
        with self.stream(prompt, raw=raw, **options) as answer:
            return "".join(answer)

    def logits(self, prompt):
        """The raw logits of token ids, or of a text as tokenize() has it: a numpy array of float32, [tokens, vocab]. Row i
        predicts token i + 1."""
        import numpy

        ids = self.tokenize(prompt) if isinstance(prompt, str) else prompt
        array, count = _array(ids)
        rows = numpy.empty((count, self.vocab), numpy.float32)
        call("logits", self._live(), array, count, rows.ctypes.data, rows.size)
        return rows

    def _prompt(self, prompt, raw):
        if isinstance(prompt, str):
            return self.tokenize(prompt) if raw else self.tokenize_chat([{"role": "user", "content": prompt}])
        prompt = list(prompt)
        return self.tokenize_chat(prompt) if prompt and isinstance(prompt[0], dict) else prompt
