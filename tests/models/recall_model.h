// recall_model.h — a model with hand-set weights that follows a chain: asked with a token, it answers with
// the token that lies behind that token's earlier place in the sequence.
//
// Two layers of `llama` without feed-forward parts. The residual stream (256 wide) holds a constant, the code
// of the token (56 signs, of nodes alone), a second code that keeps all lengths equal (of fillers alone), the
// code of the token before, and the answer's code. Layer 0 attends to the token before: its queries and keys
// are constants on the fast rotary pairs, a query turned back by one position. Layer 1 attends to where the
// code of the token before is the own code, on the pairs that 131,072 positions hardly turn, and copies the
// code of the token there. The head compares it with the codes of all nodes.
#pragma once
#include <string>
#include <vector>

#include "core/types.h"

namespace sparkinfer::test {

constexpr int kRecallNodes = 160, kRecallVocabulary = 512, kRecallContext = 1 << 17;

// Writes the model as a GGUF file.
void write_recall_model(const std::string& path);

// `tokens` fillers with the links of a chain of `links` + 1 nodes among them, in any order, each as two
// tokens side by side: a node and the node it leads to. The last token asks for the second node of the chain.
struct RecallPrompt {
    std::vector<TokenId> tokens;
    std::vector<TokenId> answer;  // the nodes that follow, one a link
    std::vector<int> place;       // of each link in the prompt
};
RecallPrompt recall_prompt(int tokens, int links, unsigned seed);

}  // namespace sparkinfer::test
