#include "recall_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string_view>

#include "core/check.h"
#include "load/gguf_test_builder.h"

namespace sparkinfer::test {
namespace {

constexpr int kDim = 256, kHeads = 4, kHead = 128, kCode = 56, kFfn = 32;
constexpr double kTheta = 1e12;
// Where the parts of the residual stream begin.
constexpr int kConstant = 0, kOwn = 1, kFiller = kOwn + kCode, kBefore = kFiller + kCode,
              kAnswer = kBefore + kCode;
static_assert(kAnswer + kCode <= kDim);
constexpr double kConstantValue = 2.8284271247461903;  // so that every embedding has an RMS of 1/2

struct Matrix {  // [out, in]
    int out, in;
    std::vector<float> values;
    Matrix(int o, int i) : out(o), in(i), values(size_t(o) * size_t(i)) {}
    float& at(int row, int column) { return values[size_t(row) * size_t(in) + size_t(column)]; }
};

double frequency(int pair) { return std::pow(kTheta, -2.0 * pair / kHead); }

using Code = std::vector<float>;  // kCode signs

// Codes no two of which agree, or disagree, in much more than half of their signs.
std::vector<Code> make_codes(int count) {
    std::mt19937 random(20);
    std::vector<Code> codes;
    while (int(codes.size()) < count) {
        Code code(kCode);
        for (float& sign : code) sign = random() & 1 ? 1.0f : -1.0f;
        const bool apart = std::all_of(codes.begin(), codes.end(), [&](const Code& other) {
            return std::abs(std::inner_product(code.begin(), code.end(), other.begin(), 0.0f)) <= 28;
        });
        if (apart) codes.push_back(code);
    }
    return codes;
}

struct Layer {
    Matrix q{kHeads * kHead, kDim}, k{kHead, kDim}, v{kHead, kDim}, o{kDim, kHeads* kHead};
};

// From the code at `from`, divided by `rms` by the norm, to the code at `to`: each head brings its share.
void copy_code(Layer& l, int from, int to, double rms) {
    for (int i = 0; i < kCode; ++i) {
        l.v.at(i, from + i) = float(rms);
        for (int h = 0; h < kHeads; ++h) l.o.at(to + i, h * kHead + i) = 1.0f / kHeads;
    }
}

// Scores 25 · Σ cos((distance - 1) · frequency): 20 above those of the neighbours, 45 above all others.
Layer token_before() {
    Layer l;
    const double normed = 2 * kConstantValue, amplitude = std::sqrt(25 * std::sqrt(double(kHead)));
    for (int pair = 0; frequency(pair) >= 2e-5; ++pair) {
        const double turn = -frequency(pair);
        l.k.at(2 * pair, kConstant) = float(amplitude / normed);
        for (int h = 0; h < kHeads; ++h) {
            l.q.at(h * kHead + 2 * pair, kConstant) = float(amplitude * std::cos(turn) / normed);
            l.q.at(h * kHead + 2 * pair + 1, kConstant) = float(amplitude * std::sin(turn) / normed);
        }
    }
    copy_code(l, kOwn, kBefore, 0.5);
    return l;
}

// Scores of about 70 where all signs agree, half of it at most elsewhere.
Layer token_behind() {
    Layer l;
    for (int i = 0; i < kCode; ++i) {
        const int place = kHead - kCode + i;
        CHECK(frequency(place / 2) * kRecallContext < 0.1, "pair {} turns", place / 2);
        l.k.at(place, kBefore + i) = 2.5f;
        for (int h = 0; h < kHeads; ++h) l.q.at(h * kHead + place, kOwn + i) = 2.5f;
    }
    copy_code(l, kOwn, kAnswer, std::sqrt((8.0 + 2 * kCode) / kDim));
    return l;
}

std::string_view raw_bytes(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * 4};
}

void add(GgufBuilder& file, const std::string& name, const Matrix& m) {
    file.tensor(name + ".weight", {uint64_t(m.in), uint64_t(m.out)}, 0, raw_bytes(m.values));
}
void add_norm(GgufBuilder& file, const std::string& name) {
    file.tensor(name + ".weight", {kDim}, 0, raw_bytes(std::vector<float>(kDim, 1.0f)));
}
void add_layer(GgufBuilder& file, int index, const Layer& l) {
    const std::string prefix = "blk." + std::to_string(index) + '.';
    add_norm(file, prefix + "attn_norm");
    add(file, prefix + "attn_q", l.q);
    add(file, prefix + "attn_k", l.k);
    add(file, prefix + "attn_v", l.v);
    add(file, prefix + "attn_output", l.o);
    add_norm(file, prefix + "ffn_norm");
    add(file, prefix + "ffn_gate", Matrix(kFfn, kDim));
    add(file, prefix + "ffn_up", Matrix(kFfn, kDim));
    add(file, prefix + "ffn_down", Matrix(kDim, kFfn));
}

}  // namespace

void write_recall_model(const std::string& path) {
    GgufBuilder file;
    const auto count = [&](const char* key, uint32_t value) { file.number(key, 4, value); };
    file.text("general.architecture", "llama");
    count("llama.block_count", 2);
    count("llama.context_length", kRecallContext);
    count("llama.embedding_length", kDim);
    count("llama.feed_forward_length", kFfn);
    count("llama.attention.head_count", kHeads);
    count("llama.attention.head_count_kv", 1);
    count("llama.attention.key_length", kHead);
    count("llama.attention.value_length", kHead);
    count("llama.rope.dimension_count", kHead);
    count("llama.vocab_size", kRecallVocabulary);
    file.number("llama.rope.freq_base", 6, float(kTheta));
    file.number("llama.attention.layer_norm_rms_epsilon", 6, 1e-6f);
    const std::vector<Code> codes = make_codes(kRecallVocabulary);
    Matrix embed(kRecallVocabulary, kDim), head(kRecallVocabulary, kDim);
    for (int token = 0; token < kRecallVocabulary; ++token) {
        const bool node = token < kRecallNodes;
        embed.at(token, kConstant) = float(kConstantValue);
        for (int i = 0; i < kCode; ++i) {
            embed.at(token, (node ? kOwn : kFiller) + i) = codes[size_t(token)][size_t(i)];
            if (node) head.at(token, kAnswer + i) = codes[size_t(token)][size_t(i)];
        }
    }
    add(file, "token_embd", embed);
    add(file, "output", head);
    add_norm(file, "output_norm");
    add_layer(file, 0, token_before());
    add_layer(file, 1, token_behind());
    write_file(path, file.bytes());
}

RecallPrompt recall_prompt(int tokens, int links, unsigned seed) {
    CHECK(links + 1 < kRecallNodes && tokens > 4 * links + 300, "{} links in {} tokens", links, tokens);
    std::mt19937 random(seed);
    std::vector<int> nodes(kRecallNodes);
    std::iota(nodes.begin(), nodes.end(), 0);
    std::shuffle(nodes.begin(), nodes.end(), random);
    // Places at the ends, at and around the edges of pages, and anywhere; none next to another.
    std::vector<int> places = {1, 63, 127, 190, tokens / 2 / 64 * 64, tokens - 4};
    while (int(places.size()) < links) {
        const int place = 1 + int(random() % unsigned(tokens - 4));
        if (std::all_of(places.begin(), places.end(), [&](int p) { return std::abs(p - place) > 2; }))
            places.push_back(place);
    }
    std::shuffle(places.begin(), places.end(), random);
    RecallPrompt prompt;
    for (int i = 0; i < tokens; ++i)
        prompt.tokens.push_back(TokenId(kRecallNodes + int(random() % (kRecallVocabulary - kRecallNodes))));
    for (int link = 0; link < links; ++link) {
        const size_t at = size_t(places[size_t(link)]);
        prompt.tokens[at] = TokenId(nodes[size_t(link)]);
        prompt.tokens[at + 1] = TokenId(nodes[size_t(link) + 1]);
        prompt.answer.push_back(prompt.tokens[at + 1]);
        prompt.place.push_back(int(at));
    }
    prompt.tokens.back() = TokenId(nodes[0]);
    return prompt;
}

}  // namespace sparkinfer::test
