"""Risk: a C program cannot use the library, or the library shows or needs more than it says."""

import re
import subprocess



def test_a_c_program_uses_all_of_it(build, models):
    done = subprocess.run([build / "capi_test", *models], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    passed, failed = map(int, re.fullmatch(r"(\d+) passed, (\d+) failed\n", done.stdout).groups())
    assert passed > 300 and failed == 0
    assert done.stderr == "", "a library prints nothing"


def test_only_functions_of_the_header_are_seen(build, request):
    library = build / "libsparkinfer.so"
    table = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    seen = {line.split()[-1] for line in table.splitlines()}
    header = (request.config.rootpath / "include" / "sparkinfer.h").read_text()
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    declared = set(re.findall(r"\b(sparkinfer_[a-z_]+)\s*\(", code))
    assert len(declared) > 10 and seen == declared


def test_nothing_but_libc_is_needed(build):
    table = subprocess.run(["objdump", "-p", build / "libsparkinfer.so"], capture_output=True, text=True, check=True).stdout
    needed = {line.split()[1] for line in table.splitlines() if "NEEDED" in line}
    assert needed <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
