// inspect_strict.h — what is odd about a model's files: things that a reader lets pass, or that it refuses
// later.
#pragma once
#include <string>
#include <vector>

#include "load/checkpoint.h"

namespace sparkinfer {

// One sentence each, none: nothing was found. Reads every weight once (with a progress bar on a terminal):
//  * the model cannot be loaded, its tokenizer or chat template cannot be used, nothing ends an answer;
//  * values that are not finite, tensors of zeros, matrices with the same bytes;
//  * ids outside of the vocabulary, a file type that no tensor has, an unknown version of the quantisation;
//  * bytes of a GGUF file that belong to nothing; names with characters that are not printable.
std::vector<std::string> suspicions(Checkpoint& checkpoint);

}  // namespace sparkinfer
