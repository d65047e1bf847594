"""Risk: a check that never fires. One break of every kind is planted in an otherwise clean tree and must be named."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).with_name("check_layering.py")
CLEAN = {
    "src/core/check.h": "#pragma once\n#include <string>\n",
    "src/core/env.cpp": 'auto home = getenv("HOME");\n',
    "src/core/json.h": "#pragma once\n#include <boost/json.hpp>\n",
    "src/ops/backend.h": '#pragma once\n#include "core/check.h"\n#include "quant/quant.h"\n',
    "src/load/gguf.cpp": '#include "core/json.h"\n#include "quant/quant.h"\n',
    "src/engine/runner.cpp": '#include "engine/engine.h"\n#include "model/model.h"\n#include "ops/backend.h"\n',
    "src/engine/runner_test.cpp": '#include "cpu/backend.h"\n',
    "src/engine/test_model.h": '#pragma once\n#include "cpu/backend.h"\n',
    "src/cli/main.cpp": '#include "cpu/backend.h"\n#include "engine/engine.h"\n#include <CLI/CLI.hpp>\n',
    "src/capi/backend.cpp": '#include "cli/machine.h"\n#include "cpu/backend.h"\n#include <sparkinfer.h>\n',
    "include/sparkinfer.h": "#include <stddef.h>\n",
    "README.md": "build/release/sparkinfer runs; see docs/work/home.md\n",
}
BREAKS = [
    ("src/core/a.cpp", 1, '#include "quant/quant.h"\n', "core must not include quant"),
    ("src/load/a.cpp", 2, '\n#include "ops/ops.h"\n', "load must not include ops"),
    ("src/load/b.cpp", 1, '#include "text/tokenizer.h"\n', "load must not include text"),
    ("src/ops/a.cpp", 1, '#include "cpu/backend.h"\n', "ops must not include cpu"),
    ("src/cpu/a.cpp", 1, '#include "model/model.h"\n', "cpu must not include model"),
    ("src/model/a.cpp", 1, '#  include "cpu/backend.h"\n', "model must not include cpu"),
    ("src/engine/a.cpp", 1, '#include "text/tokenizer.h"\n', "engine must not include text"),
    ("src/engine/b.cpp", 1, '#include "ops/explain.h"\n', "engine may include of ops only"),
    ("src/engine/c_test.cpp", 1, '#include "server/http.h"\n', "engine must not include server"),
    ("src/server/a.cpp", 1, '#include "engine/scheduler.h"\n', "server may include of engine only engine/engine.h"),
    ("src/server/b.cpp", 1, '#include "model/model.h"\n', "server must not include model"),
    ("src/cli/run.cpp", 1, '#include "cpu/backend.h"\n', "only src/cli/main.cpp names a backend"),
    ("src/capi/a.cpp", 1, '#include "cpu/backend.h"\n', "only src/capi/backend.cpp names a backend"),
    ("src/capi/b.cpp", 1, '#include "cli/options.h"\n', "capi may include of cli only"),
    ("src/capi/c.cpp", 1, '#include "server/service.h"\n', "capi must not include server"),
    ("src/cli/a.cpp", 1, "#include <sparkinfer.h>\n", "only capi includes it"),
    ("include/more.h", 1, "#include <string>\n", "stand alone"),
    ("src/model/b.cpp", 1, '#include "core/json.h"\n', "model must not know of JSON"),
    ("src/load/c.cpp", 1, "#include <boost/json.hpp>\n", "JSON goes through core/json.h"),
    ("src/cpu/b.cpp", 1, "#include <cuda_runtime.h>\n", "CUDA header cuda_runtime.h outside of src/cuda"),
    ("src/core/log.h", 2, "#pragma once\n#include <CLI/CLI.hpp>\n", "in a header"),
    ("src/core/bare.h", 1, "int f();\n", "without #pragma once"),
    ("src/core/b.cpp", 1, '#include "check.h"\n', "write the folder too"),
    ("src/extra/a.cpp", 1, "int x;\n", "has no row in the dependency rule"),
    ("src/cpu/c.cpp", 3, '\n\nauto v = std::getenv("FAST");\n', "read in src/core/env.cpp alone"),
    ("rust/text/src/lib.rs", 1, 'std::env::var("FAST")\n', "read in src/core/env.cpp alone"),
    ("src/cpu/long.cpp", 501, "int x;\n" * 501, "501 lines"),
    ("tests/t.py", 1, 'open("/home/me/model.gguf")\n', "somebody's machine"),
    ("docs/a.md", 1, "see ../shared/design\n", "outside of the project"),
    ("src/cpu/d.cpp", 1, "// TODO: faster\n", "an open end"),
]


def run(tree, files):
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    done = subprocess.run([sys.executable, CHECK, tree], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_a_clean_tree_passes_in_silence(tmp_path):
    assert run(tmp_path, CLEAN) == (0, [])


@pytest.mark.parametrize(("name", "line", "text", "wrong"), BREAKS, ids=[b[0] for b in BREAKS])
def test_a_planted_break_is_named_with_its_place(tmp_path, name, line, text, wrong):
    code, output = run(tmp_path, {**CLEAN, name: text})
    assert code == 1
    assert len(output) == 1, output
    assert output[0].startswith(f"{name}:{line}: ") and wrong in output[0]


def test_the_seventh_file_with_heavy_headers_is_one_too_many(tmp_path):
    heavy = {f"src/cli/h{i}.cpp": "#include <CLI/CLI.hpp>\n" for i in range(5)}    # and main.cpp: six
    assert run(tmp_path, {**CLEAN, **heavy}) == (0, [])
    code, output = run(tmp_path, {"src/cli/h5.cpp": "#include <openssl/ssl.h>\n"})
    assert code == 1 and len(output) == 7
