// tapes.cpp — the tapes of real models: what they must hold and cost.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/explain.h"
#include "ops/validate.h"
#include "real_models.h"

namespace sparkinfer::test {
namespace {

// Risk: the facts below are of no model that exists, and everything here tests something else.
TEST(Tapes, FactsAreThoseOfPublishedFiles) {
    for (const Recorded& r : recorded_models()) {
        SCOPED_TRACE(r.facts->name);
        EXPECT_EQ(int64_t(r.checkpoint->tensors().size()), r.facts->tensors);
        EXPECT_TRUE(r.model->unused().empty());
        if (r.facts->parameters) {
            EXPECT_EQ(r.model->shape().parameters, r.facts->parameters);
        }
        double bytes = 0;
        for (const StoredTensor& t : r.checkpoint->tensors()) bytes += double(t.bytes);
        // A file holds its vocabulary too.
        if (const double file = double(r.facts->file_bytes)) {
            EXPECT_NEAR(bytes, file, 1e-3 * file);
        }
    }
}

// Risk: a forward pass that records more than it must, in an order or over memory that breaks the rules.
TEST(Tapes, TapesAreValidAndShort) {
    for (const Recorded& r : recorded_models())
        for (const Tape& tape : r.tapes) {
            const Result<void> valid = validate(tape);
            EXPECT_TRUE(valid.ok()) << r.facts->name << ": " << valid.error().message;
            const size_t layer = r.facts->experts ? 6 : 5;
            EXPECT_EQ(tape.instrs().size(), 2 + layer * size_t(r.facts->layers)) << r.facts->name;
            EXPECT_EQ(tape.instrs().front().code, OpCode::embed);
            EXPECT_EQ(tape.instrs().back().code, OpCode::output);
        }
}

// Bytes of weights that a step of `rows` touches, from the files' table of tensors.
double touched_bytes(const Recorded& r, int rows) {
    const ModelFacts& f = *r.facts;
    double untouched = 1;  // share of the experts that no row picks
    for (int t = 0; t < rows; ++t) untouched *= 1 - double(f.used) / std::max(f.experts, 1);
    double bytes = 0;
    for (const StoredTensor& t : r.checkpoint->tensors()) {
        if (t.name == "token_embd.weight")
            bytes += double(t.bytes) * (f.tied + double(rows) / f.vocabulary);
        else
            bytes += double(t.bytes) * (t.name.find("_exps.") == std::string::npos ? 1 : 1 - untouched);
    }
    // Not in the table: each attention reads the rotary frequencies, an F32 for two dimensions, and a layer
    // of experts its norm twice.
    bytes += f.attention_layers() * f.rotary * 2.0;
    return bytes + (f.experts ? f.layers * f.dim * 4.0 : 0);
}

// Risk: speeds judged against a floor that forgets weights, counts idle experts or the wrong cache.
TEST(Tapes, ExplainedBytesAreThoseOfTheFiles) {
    constexpr int64_t kDepth = 1000;
    for (const Recorded& r : recorded_models())
        for (size_t i = 0; i < std::size(kRecordedRows); ++i) {
            const ModelFacts& f = *r.facts;
            const int rows = kRecordedRows[i];
            OpCost total;
            for (const ExplainRow& row : explain(r.tapes[i], {rows, kDepth, rows})) total += row.cost;
            const double weights = touched_bytes(r, rows);
            EXPECT_NEAR(total.weight_bytes, weights, 1e-9 * weights) << f.name << ", rows " << rows;
            EXPECT_EQ(total.kv_bytes,
                      double(f.attention_layers()) * 2 * f.kv_heads * f.width * 2 * double(kDepth + rows))
                << f.name;
            // S there and back, three columns of the convolution before the rows and those of the rows.
            const double kept = std::min(rows, 11);  // columns of the state's ring
            const double state = 2.0 * f.value_heads * 128 * 128 * 4 + (3.0 + kept) * f.channels() * 4;
            const int recurrent = f.layers - f.attention_layers();
            EXPECT_EQ(total.state_bytes, recurrent ? recurrent * state : 0) << f.name;
        }
}

}  // namespace
}  // namespace sparkinfer::test
