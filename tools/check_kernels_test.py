"""Risk: a kernel that spills, grows or is missing for one code generation passes the check."""

import pytest
from check_kernels import Instance, Limit, check_statements, check_targets, check_use, kernel_of, parse_ptxas, read_sources

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN10sparkinfer4cuda4plusILi7ELi2EEEvNS0_4ArgsE' for 'sm_90a'
ptxas info    : Function properties for _ZN10sparkinfer4cuda4plusILi7ELi2EEEvNS0_4ArgsE
    16 bytes stack frame, 24 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 72 registers, used 2 barriers, 16 bytes cumulative stack size, 9648 bytes smem
ptxas info    : Compile time = 725.390 ms
ptxas info    : Compiling entry function '_ZN10sparkinfer4cuda12_GLOBAL__N_15minusENS0_4ArgsE' for 'sm_120f'
ptxas info    : Function properties for some_device_function
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers
"""
PLUS = Instance("_Zplus", "plus", "sm_90a", 72, 9648, 0)


def test_what_ptxas_says_is_read():
    plus, minus = parse_ptxas(PTXAS)
    assert (plus.kernel, plus.target, plus.registers, plus.shared, plus.spill) == ("plus", "sm_90a", 72, 9648, 28)
    assert (minus.kernel, minus.target, minus.registers, minus.shared, minus.spill) == ("minus", "sm_120f", 32, 0, 0)
    assert kernel_of("_Z4scanPKSt4bytel") == "scan"
    with pytest.raises(ValueError, match="no mangled name"):
        kernel_of("scan")


def test_lines_and_kernels_of_the_sources_are_found(tmp_path):
    (tmp_path / "a.cuh").write_text(
        "// Kernel     plus: 72 registers, 9648 bytes\n// Kernel     minus: 32 registers\n"
        "// __global__ void commented(int);\n"
        "template <class S>\n__global__ void __cluster_dims__(kA, 1, 1) __launch_bounds__(S::kThreads, kB ? 2 : (3))\n"
        "    plus(const __grid_constant__ Args p) {\n}\n__global__ void __launch_bounds__(32) minus(Args p) {}\n")
    (tmp_path / "b.cu").write_text("__global__ void times(int* p, int n) {}\n")
    limits, defined = read_sources(tmp_path)
    assert limits == {"plus": Limit("a.cuh", 72, 9648), "minus": Limit("a.cuh", 32, 0)}
    assert defined == {"plus": "a.cuh", "minus": "a.cuh", "times": "b.cu"}
    assert list(check_statements(limits, defined)) == [
        "b.cu: times has no line '// Kernel     times: N registers, N bytes'"]
    wrong = list(check_statements({"plus": Limit("b.cu", 1, 0), "gone": Limit("a.cuh", 1, 0)}, {"plus": "a.cuh"}))
    assert "the line of plus is in b.cu" in wrong[0] and "gone, which is no kernel" in wrong[1]


@pytest.mark.parametrize(
    "change, limit, spills, wrong",
    [
        ({}, (72, 9648), {}, None),
        ({"registers": 73}, (72, 9648), {}, "a.cuh: plus takes 73 registers, its line says 72"),
        ({"shared": 9649}, (72, 9648), {}, "a.cuh: plus takes 9649 bytes of shared memory, its line says 9648"),
        ({"spill": 4}, (72, 9648), {}, "plus spills 4 bytes, 0 are allowed: _Zplus on sm_90a"),
        ({"spill": 4}, (72, 9648), {"plus": 4}, None),
        ({"spill": 8}, (72, 9648), {"plus": 4}, "plus spills 8 bytes, 4 are allowed: _Zplus on sm_90a"),
        ({"spill": 4}, (72, 9648), {"plus": 8}, "plus spills 4 bytes, 8 are allowed: lower its number in SPILLS to 4"),
        ({}, (72, 9648), {"plus": 8}, "plus spills 0 bytes, 8 are allowed: take it out of SPILLS"),
        ({}, (72, 9648), {"gone": 8}, "SPILLS has gone, which is no kernel"),
    ],
)
def test_more_than_stated_is_found(change, limit, spills, wrong):
    instance = Instance(**{**PLUS.__dict__, **change})
    found = list(check_use([instance], {"plus": Limit("a.cuh", *limit)}, spills))
    assert found == ([wrong] if wrong else [])


def test_the_largest_instance_counts():
    small = Instance("_Zsmall", "plus", "sm_120f", 10, 0, 0)
    assert list(check_use([PLUS, small], {"plus": Limit("a.cuh", 71, 9648)}, {})) == [
        "a.cuh: plus takes 72 registers, its line says 71"]


def test_a_kernel_that_one_code_generation_lacks_is_found():
    other = Instance("_Zplus", "plus", "sm_120f", 10, 0, 0)
    extra = Instance("_Zplus2", "plus", "sm_90a", 10, 0, 0)
    targets = ["sm_90a", "sm_120f"]
    assert not list(check_targets([PLUS, other], {"plus": "a.cuh"}, targets))
    assert list(check_targets([PLUS, other, extra], {"plus": "a.cuh"}, targets)) == ["sm_120f lacks _Zplus2"]
    assert list(check_targets([PLUS, other], {"plus": "a.cuh", "gone": "b.cu"}, targets)) == [
        f"{target} lacks gone of b.cu: nothing launches it" for target in targets]
