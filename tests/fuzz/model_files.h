// model_files.h — for fuzz targets: all that the program makes of a model's files before it computes.
#pragma once
#include "fuzz.h"
#include "load/checkpoint.h"
#include "model/model.h"
#include "ops/tape.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace sparkinfer {

// Texts in the words of the file: every id is of the vocabulary.
inline void use_tokenizer(const Tokenizer& tokenizer) {
    constexpr std::string_view kTexts[] = {"Hello world, 12345\n\tit's", "<|im_start|>user\n",
                                           "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80"};
    for (const std::string_view text : kTexts)
        for (const auto specials : {Tokenizer::Specials::parse, Tokenizer::Specials::none}) {
            const auto ids = tokenizer.encode(text, specials);
            if (!ids.ok()) {
                check_error(ids.error());
                continue;
            }
            for (const TokenId id : ids.value())
                CHECK(tokenizer.contains(id), "id {} of {}", raw(id), tokenizer.size());
            (void)tokenizer.decode(ids.value(), true);
        }
    for (const TokenId id : tokenizer.end_tokens())
        CHECK(tokenizer.contains(id), "end token {} of {}", raw(id), tokenizer.size());
}

// One step, recorded and never run: the shapes of all tensors fit each other.
inline void record_step(const Model& model) {
    Batch batch;
    batch.rows = 2;
    batch.kv = model.shape().kv;
    batch.state = model.shape().state;
    batch.output = OutputKind::select;
    batch.outputs = 1;
    Tape tape({}, {}, nullptr);
    model.forward(tape, batch);
    CHECK(!tape.instrs().empty(), "an empty tape");
}

// As every command begins: tensors, model, tokenizer, template. Whatever of it is refused, is so in a
// sentence.
inline void use_model(const std::string& path) {
    auto checkpoint = open_checkpoint(path);
    if (!checkpoint.ok()) return check_error(checkpoint.error());
    if (const auto model = load_model(**checkpoint); model.ok())
        record_step(*model.value());
    else
        check_error(model.error());
    const Metadata& metadata = (*checkpoint)->metadata();
    if (const auto tokenizer = Tokenizer::from_metadata(metadata); tokenizer.ok())
        use_tokenizer(tokenizer.value());
    else
        check_error(tokenizer.error());
    const auto chat = ChatTemplate::from_metadata(metadata);
    if (!chat.ok()) return check_error(chat.error());
    if (const auto rendered = chat.value().render_user("Hello"); !rendered.ok())
        check_error(rendered.error());
}

}  // namespace sparkinfer
