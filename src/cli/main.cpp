// main.cpp — the one place of the command line that names a backend.
#include "cli/commands.h"
#include "cpu/backend.h"

int main(int argc, char** argv) {
    return sparkinfer::cli_main(
        argc, argv, [](int threads) { return sparkinfer::make_cpu_backend({.threads = threads}); });
}
