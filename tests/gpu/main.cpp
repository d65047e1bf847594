// main.cpp — every test of the GPU in one binary, run on a machine that has one:
//
//     gpu_test                                            the op cases and the recall model
//     gpu_test --models=FOLDER [--tokens=FILE.npy]        and whole models, against the CPU
//     gpu_test --short                                    the op cases op by op, shortened, each tensor in an
//                                                         allocation of its own: for compute-sanitizer
//     gpu_test --policy=rtx5090                           with kernels as for that GPU (pro6000, spark)
//     gpu_test --variants                                 names every kernel variant that was run, at the end
//
// Options of googletest choose among them; tools/test_gpu.py runs all of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "../ops/harness.h"
#include "cuda/backend.h"
#include "gpu_test.h"

namespace sparkinfer::test {

static GpuTestOptions options;
const GpuTestOptions& gpu_test_options() { return options; }

std::vector<std::string> small_models() {
    std::vector<std::string> found;
    if (options.models.empty()) return found;
    for (const auto& entry : std::filesystem::directory_iterator(options.models)) {
        const bool model =
            entry.path().extension() == ".gguf" || std::filesystem::exists(entry.path() / "config.json");
        if (model && !entry.path().filename().string().starts_with("SmolLM2"))
            found.push_back(entry.path().string());
    }
    std::sort(found.begin(), found.end());
    return found;
}

static bool take_option(std::string_view argument, bool& variants) {
    const auto value = [&](std::string_view name, std::string& to) {
        if (!argument.starts_with(name)) return false;
        to = argument.substr(name.size());
        return true;
    };
    if (argument == "--short") return shorten_cases(), true;
    if (argument == "--variants") return variants = true;
    if (std::string gpu; value("--policy=", gpu)) return choose_kernels_for(gpu), true;
    return value("--models=", options.models) || value("--tokens=", options.tokens) ||
           argument.starts_with("--gtest");
}

}  // namespace sparkinfer::test

int main(int argc, char** argv) {
    using namespace sparkinfer;
    setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // a run that is cut short shows where it was
    bool variants = false;
    for (int i = 1; i < argc; ++i)
        if (!test::take_option(argv[i], variants)) {
            fprintf(stderr,
                    "gpu_test: '%s' is no option; expected --models=FOLDER, --tokens=FILE.npy, --short, "
                    "--variants, --policy=GPU or one of googletest's\n",
                    argv[i]);
            return 2;
        }
    if (!test::gpu_test_options().models.empty() &&
        !std::filesystem::is_directory(test::gpu_test_options().models)) {
        fprintf(stderr, "gpu_test: --models=%s is no folder\n", test::gpu_test_options().models.c_str());
        return 2;
    }
    if (const std::string why = cuda_unavailable(0); !why.empty()) {
        fprintf(stderr, "gpu_test: %s\n", why.c_str());
        return 4;
    }
    testing::InitGoogleTest(&argc, argv);
    const int status = RUN_ALL_TESTS();
    if (variants)
        for (const std::string& name : test::variants_run()) printf("variant %s\n", name.c_str());
    return status;
}
