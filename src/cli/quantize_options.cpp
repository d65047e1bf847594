// quantize_options.cpp — the flags of `sparkinfer quantize`.
#include "cli/option_binder.h"

namespace sparkinfer {

void bind_quantize(Binder b, QuantizeOptions& o) {
    b.word("IN", "a GGUF file of F32, F16 or BF16 weights, or the first piece of a split one", o.in);
    b.word("OUT", "the GGUF file to write: one file, replaced if it exists", o.out);
    CLI::Option* type =
        b.word("TYPE",
               "Q8_0, Q6_K, Q5_K_M (or Q5_K), Q5_K_S, Q4_K_M (or Q4_K), Q4_K_S, Q5_1, Q5_0, Q4_1, Q4_0; "
               "F16, BF16, F32: decode",
               o.type);
    b.known(type, {"Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "Q4_K_S", "Q5_1", "Q5_0", "Q4_1", "Q4_0",
                   "F16", "BF16", "F32"});
    b.text("--imatrix", "FILE", "an importance matrix of llama-imatrix: what matters most is rounded best",
           o.imatrix);
    b.flag("--dry-run", "print each tensor's new type and size, write nothing", o.dry_run);
    b.flag("--requantize", "also take weights that are quantised already: they lose twice", o.requantize);
    b.threads(o.threads);
}

}  // namespace sparkinfer
