"""libsparkinfer through ctypes: the functions and structs of sparkinfer.h, and its errors as exceptions."""

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

FROM_MODEL = -2
OK, DONE = 0, 1
ADD_SPECIAL, PARSE_SPECIAL, KEEP_CONTROL = 1, 2, 4
KINDS = {2: "usage", 3: "bad_input", 4: "resources", 5: "internal"}


class Error(Exception):
    """What the library refuses or fails at, in one sentence. `kind` is "usage", "bad_input", "resources" or "internal"."""

    def __init__(self, message, kind):
        super().__init__(message)
        self.kind = kind


class LoadOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("backend", c_char_p), ("threads", c_int32), ("context", c_int32),
                ("sequences", c_int32)]


class LogitBias(ctypes.Structure):
    _fields_ = [("id", c_int32), ("bias", c_float)]


class GenerateOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("max_tokens", c_int32), ("top_k", c_int32), ("repeat_last_n", c_int32),
                ("temperature", c_float), ("top_p", c_float), ("min_p", c_float), ("repeat_penalty", c_float),
                ("presence_penalty", c_float), ("frequency_penalty", c_float), ("seeded", c_int32), ("seed", c_uint64),
                ("stop", POINTER(c_char_p)), ("stop_count", c_size_t), ("logit_bias", POINTER(LogitBias)),
                ("logit_bias_count", c_size_t)]


_IDS = POINTER(c_int32)
_FUNCTIONS = {
    "version": (c_char_p, []),
    "last_error": (c_char_p, []),
    "model_load": (c_int, [c_char_p, POINTER(LoadOptions), POINTER(c_void_p)]),
    "model_free": (None, [c_void_p]),
    "model_vocab": (c_int32, [c_void_p]),
    "model_context": (c_int32, [c_void_p]),
    "model_backend": (c_char_p, [c_void_p]),
    "tokenize": (c_int, [c_void_p, c_char_p, c_size_t, c_uint, _IDS, c_size_t, POINTER(c_size_t)]),
    "tokenize_chat": (c_int, [c_void_p, c_char_p, c_size_t, _IDS, c_size_t, POINTER(c_size_t)]),
    "detokenize": (c_int, [c_void_p, _IDS, c_size_t, c_uint, c_void_p, c_size_t, POINTER(c_size_t)]),
    "stream_start": (c_int, [c_void_p, _IDS, c_size_t, POINTER(GenerateOptions), POINTER(c_void_p)]),
    "stream_next": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_size_t)]),
    "stream_tokens": (_IDS, [c_void_p, POINTER(c_size_t)]),
    "stream_finish": (c_char_p, [c_void_p]),
    "stream_free": (None, [c_void_p]),
    "logits": (c_int, [c_void_p, _IDS, c_size_t, c_void_p, c_size_t]),
}


def _open():
    # In a wheel the library lies beside this file; else it is the system's.
    beside = Path(__file__).parent / "libsparkinfer.so"
    library = ctypes.CDLL(str(beside) if beside.exists() else "libsparkinfer.so.0")
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, f"sparkinfer_{name}")
        function.restype, function.argtypes = result, arguments
    return library


_library = _open()


def function(name):
    """A function of the header, without its prefix; it answers with what the C function does."""
    return getattr(_library, f"sparkinfer_{name}")


def call(name, *arguments):
    """Calls a function that answers with a status; True: there is more, False: the stream is done."""
    status = function(name)(*arguments)
    if status in KINDS:
        raise Error(function("last_error")().decode(errors="replace"), KINDS[status])
    return status == OK


def version():
    return function("version")().decode()
