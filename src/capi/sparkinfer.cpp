// sparkinfer.cpp — the functions of include/sparkinfer.h: arguments checked, Results to statuses, exceptions
// kept in.
#include <sparkinfer.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "capi/loaded_model.h"
#include "cli/model_facts.h"

struct sparkinfer_model {
    std::shared_ptr<sparkinfer::capi::LoadedModel> loaded;
};

struct sparkinfer_stream {
    sparkinfer_stream(std::shared_ptr<sparkinfer::capi::LoadedModel> model, std::vector<std::string> stop)
        : loaded(std::move(model)), answer(loaded->tokenizer(), std::move(stop)) {}
    ~sparkinfer_stream() { loaded->cancel(answer); }
    sparkinfer_stream(const sparkinfer_stream&) = delete;
    sparkinfer_stream& operator=(const sparkinfer_stream&) = delete;

    std::shared_ptr<sparkinfer::capi::LoadedModel> loaded;
    sparkinfer::capi::Answer answer;
    // What the caller holds: the newest text; all tokens.
    sparkinfer::capi::Part given;
};

namespace sparkinfer::capi {
namespace {

thread_local std::string last_error;

sparkinfer_status failed(sparkinfer_status status, const char* sentence) noexcept {
    try {
        last_error = sentence;
    } catch (...) {
        last_error.clear();  // no memory even for the sentence
    }
    return status;
}

sparkinfer_status status_of(const Result<void>& result) {
    if (result.ok()) return SPARKINFER_OK;
    return failed(sparkinfer_status(result.error().kind), result.error().message.c_str());
}

// Calls what returns a Result<void>; exceptions (of libraries, and of memory that ran out) become statuses.
template <class Body>
sparkinfer_status guarded(Body body) noexcept {
    try {
        return status_of(body());
    } catch (const std::bad_alloc&) {
        return failed(SPARKINFER_RESOURCES, "no memory is left for what was asked");
    } catch (const std::exception& e) {
        return failed(SPARKINFER_INTERNAL, e.what());
    } catch (...) {
        return failed(SPARKINFER_INTERNAL, "something unknown failed");
    }
}

template <class T>
Result<void> not_null(const T* pointer, const char* name) {
    if (pointer != nullptr) return {};
    return usage_error("{} is NULL, expected a pointer", name);
}

// `size` elements, of which there may be none.
template <class T>
Result<void> check_array(const T* pointer, size_t size, const char* name) {
    if (pointer != nullptr || size == 0) return {};
    return usage_error("{} is NULL, expected {} of them", name, size);
}

Result<void> check_struct(size_t found, size_t expected, const char* name) {
    if (found == expected) return {};
    return usage_error("struct_size of the {} is {}, expected {}: begin with the macro of that name", name,
                       found, expected);
}

Result<void> check_flags(unsigned flags, unsigned known) {
    if ((flags & ~known) == 0) return {};
    return usage_error("flags is {}, expected a sum of {}", flags,
                       known == SPARKINFER_KEEP_CONTROL
                           ? "SPARKINFER_KEEP_CONTROL"
                           : "SPARKINFER_ADD_SPECIAL and SPARKINFER_PARSE_SPECIAL");
}

// Elements to a buffer of the caller's, or none of them.
template <class T>
Result<void> give(const T* from, size_t size, T* to, size_t capacity, size_t& count) {
    count = size;
    if (to == nullptr) return {};
    if (size > capacity) return usage_error("the buffer has room for {}, expected {}", capacity, size);
    std::copy(from, from + size, to);
    return {};
}

Result<void> give_ids(const std::vector<TokenId>& ids, int32_t* to, size_t capacity, size_t& count) {
    static_assert(sizeof(TokenId) == sizeof(int32_t));
    return give(reinterpret_cast<const int32_t*>(ids.data()), ids.size(), to, capacity, count);
}

std::vector<TokenId> tokens(const int32_t* ids, size_t count) {
    std::vector<TokenId> all(count);
    for (size_t i = 0; i < count; ++i) all[i] = TokenId(ids[i]);
    return all;
}

template <class T>
std::optional<T> given(T value) {
    if (value == T(SPARKINFER_FROM_MODEL)) return std::nullopt;
    return value;
}

Result<Request> make_request(const sparkinfer_generate_options& o, const Metadata& metadata) {
    TRY_VOID(check_struct(o.struct_size, sizeof o, "SPARKINFER_GENERATE_OPTIONS"));
    TRY_VOID(check_array(o.logit_bias, o.logit_bias_count, "logit_bias"));
    if (o.max_tokens == 0) return usage_error("max_tokens is 0, expected -1 or a whole number from 1");
    SamplingOptions sampling;
    sampling.temperature = given(double(o.temperature));
    sampling.top_p = given(double(o.top_p));
    sampling.min_p = given(double(o.min_p));
    sampling.repeat_penalty = given(double(o.repeat_penalty));
    sampling.top_k = given(int64_t(o.top_k));
    sampling.repeat_last_n = given(int64_t(o.repeat_last_n));
    sampling.presence_penalty = o.presence_penalty;
    sampling.frequency_penalty = o.frequency_penalty;
    if (o.seeded != 0) sampling.seed = o.seed;
    for (size_t i = 0; i < o.logit_bias_count; ++i)
        sampling.logit_bias.emplace_back(o.logit_bias[i].id, o.logit_bias[i].bias);
    Request request;
    request.max_tokens = o.max_tokens;
    TRY(request.sampling, resolve_sampling(sampling, metadata));
    return request;
}

Result<std::vector<std::string>> stop_strings(const sparkinfer_generate_options& o) {
    TRY_VOID(check_array(o.stop, o.stop_count, "stop"));
    std::vector<std::string> all;
    for (size_t i = 0; i < o.stop_count; ++i) {
        TRY_VOID(not_null(o.stop[i], "a stop string"));
        all.emplace_back(o.stop[i]);
    }
    return all;
}

Result<std::unique_ptr<sparkinfer_stream>> start(sparkinfer_model& model, const int32_t* prompt, size_t count,
                                                 const sparkinfer_generate_options* options) {
    const sparkinfer_generate_options defaults = SPARKINFER_GENERATE_OPTIONS;
    const sparkinfer_generate_options& o = options != nullptr ? *options : defaults;
    TRY_VOID(check_array(prompt, count, "prompt"));
    TRY(Request request, make_request(o, model.loaded->metadata()));
    request.prompt = tokens(prompt, count);
    TRY(std::vector<std::string> stop, stop_strings(o));
    auto stream = std::make_unique<sparkinfer_stream>(model.loaded, std::move(stop));
    TRY_VOID(model.loaded->start(std::move(request), stream->answer));
    return stream;
}

// Whether there is more to come; the text of a step is in `given`.
Result<bool> next(sparkinfer_stream& stream) {
    Part part = stream.loaded->take(stream.answer);
    Part& given = stream.given;
    given.text = std::move(part.text);
    given.tokens.insert(given.tokens.end(), part.tokens.begin(), part.tokens.end());
    given.finish = part.finish;
    if (!given.text.empty() || given.finish == FinishReason::none) return true;
    if (part.error) return *part.error;
    return false;
}

Result<std::string> whole_answer(sparkinfer_stream& stream) {
    std::string text;
    for (;;) {
        TRY(const bool more, next(stream));
        if (!more) return text;
        text += stream.given.text;
    }
}

Result<LoadChoice> load_choice(const sparkinfer_load_options* o) {
    LoadChoice choice;
    if (o == nullptr) return choice;
    TRY_VOID(check_struct(o->struct_size, sizeof *o, "SPARKINFER_LOAD_OPTIONS"));
    if (o->backend != nullptr) choice.backend = o->backend;
    if (o->sequences < 0) return usage_error("sequences is {}, expected 0 or more", o->sequences);
    choice.threads = o->threads;
    choice.context = o->context;
    if (o->sequences > 0) choice.sequences = o->sequences;
    return choice;
}

}  // namespace
}  // namespace sparkinfer::capi

using namespace sparkinfer;        // NOLINT: what follows is C
using namespace sparkinfer::capi;  // NOLINT

const char* sparkinfer_version(void) { return SPARKINFER_VERSION; }

const char* sparkinfer_last_error(void) { return last_error.c_str(); }

sparkinfer_status sparkinfer_model_load(const char* path, const sparkinfer_load_options* options,
                                        sparkinfer_model** model) {
    return guarded([&]() -> Result<void> {
        TRY_VOID(not_null(model, "model"));
        *model = nullptr;
        TRY_VOID(not_null(path, "path"));
        TRY(const LoadChoice choice, load_choice(options));
        TRY(std::shared_ptr<LoadedModel> loaded, LoadedModel::open(path, choice));
        *model = new sparkinfer_model{std::move(loaded)};
        return {};
    });
}

void sparkinfer_model_free(sparkinfer_model* model) { delete model; }

int32_t sparkinfer_model_vocab(const sparkinfer_model* model) {
    return model != nullptr ? model->loaded->vocab() : 0;
}

int32_t sparkinfer_model_context(const sparkinfer_model* model) {
    return model != nullptr ? model->loaded->context() : 0;
}

const char* sparkinfer_model_backend(const sparkinfer_model* model) {
    return model != nullptr ? model->loaded->backend().c_str() : nullptr;
}

sparkinfer_status sparkinfer_tokenize(const sparkinfer_model* model, const char* text, size_t bytes,
                                      unsigned flags, int32_t* ids, size_t capacity, size_t* count) {
    return guarded([&]() -> Result<void> {
        TRY_VOID(not_null(model, "model"));
        TRY_VOID(not_null(count, "count"));
        TRY_VOID(check_array(text, bytes, "text"));
        TRY_VOID(check_flags(flags, SPARKINFER_ADD_SPECIAL | SPARKINFER_PARSE_SPECIAL));
        const auto specials =
            (flags & SPARKINFER_PARSE_SPECIAL) != 0 ? Tokenizer::Specials::parse : Tokenizer::Specials::none;
        TRY(const std::vector<TokenId> found,
            model->loaded->tokenizer().encode({text, bytes}, specials,
                                              (flags & SPARKINFER_ADD_SPECIAL) != 0));
        return give_ids(found, ids, capacity, *count);
    });
}

sparkinfer_status sparkinfer_tokenize_chat(const sparkinfer_model* model, const char* messages, size_t bytes,
                                           int32_t* ids, size_t capacity, size_t* count) {
    return guarded([&]() -> Result<void> {
        TRY_VOID(not_null(model, "model"));
        TRY_VOID(not_null(count, "count"));
        TRY_VOID(check_array(messages, bytes, "messages"));
        TRY(const std::vector<TokenId> found, model->loaded->tokenize_chat({messages, bytes}));
        return give_ids(found, ids, capacity, *count);
    });
}

sparkinfer_status sparkinfer_detokenize(const sparkinfer_model* model, const int32_t* ids, size_t id_count,
                                        unsigned flags, char* text, size_t capacity, size_t* count) {
    return guarded([&]() -> Result<void> {
        TRY_VOID(not_null(model, "model"));
        TRY_VOID(not_null(count, "count"));
        TRY_VOID(check_array(ids, id_count, "ids"));
        TRY_VOID(check_flags(flags, SPARKINFER_KEEP_CONTROL));
        const Tokenizer& tokenizer = model->loaded->tokenizer();
        const std::vector<TokenId> all = tokens(ids, id_count);
        for (size_t i = 0; i < all.size(); ++i)
            if (!tokenizer.contains(all[i]))
                return bad_input("token {} is id {}, expected an id of the vocabulary, 0 to {}", i,
                                 raw(all[i]), tokenizer.size() - 1);
        const std::string found = tokenizer.decode(all, (flags & SPARKINFER_KEEP_CONTROL) != 0);
        return give(found.data(), found.size(), text, capacity, *count);
    });
}

sparkinfer_status sparkinfer_stream_start(sparkinfer_model* model, const int32_t* prompt, size_t prompt_count,
                                          const sparkinfer_generate_options* options,
                                          sparkinfer_stream** stream) {
    return guarded([&]() -> Result<void> {
        TRY_VOID(not_null(stream, "stream"));
        *stream = nullptr;
        TRY_VOID(not_null(model, "model"));
        TRY(std::unique_ptr<sparkinfer_stream> started, start(*model, prompt, prompt_count, options));
        *stream = started.release();
        return {};
    });
}

sparkinfer_status sparkinfer_stream_next(sparkinfer_stream* stream, const char** text, size_t* bytes) {
    bool more = true;
    const sparkinfer_status status = guarded([&]() -> Result<void> {
        TRY_VOID(not_null(text, "text"));
        TRY_VOID(not_null(bytes, "bytes"));
        *text = "";
        *bytes = 0;
        TRY_VOID(not_null(stream, "stream"));
        TRY(more, next(*stream));
        *text = stream->given.text.c_str();
        *bytes = stream->given.text.size();
        return {};
    });
    return status == SPARKINFER_OK && !more ? SPARKINFER_DONE : status;
}

const int32_t* sparkinfer_stream_tokens(const sparkinfer_stream* stream, size_t* count) {
    if (count != nullptr) *count = stream != nullptr ? stream->given.tokens.size() : 0;
    return stream != nullptr ? reinterpret_cast<const int32_t*>(stream->given.tokens.data()) : nullptr;
}

const char* sparkinfer_stream_finish(const sparkinfer_stream* stream) {
    return stream != nullptr ? finish_reason_name(stream->given.finish) : "none";
}

void sparkinfer_stream_free(sparkinfer_stream* stream) { delete stream; }

sparkinfer_status sparkinfer_generate(sparkinfer_model* model, const int32_t* prompt, size_t prompt_count,
                                      const sparkinfer_generate_options* options, char** text,
                                      size_t* bytes) {
    return guarded([&]() -> Result<void> {
        TRY_VOID(not_null(text, "text"));
        *text = nullptr;
        if (bytes != nullptr) *bytes = 0;
        TRY_VOID(not_null(model, "model"));
        TRY(const std::unique_ptr<sparkinfer_stream> stream, start(*model, prompt, prompt_count, options));
        TRY(const std::string whole, whole_answer(*stream));
        *text = static_cast<char*>(std::malloc(whole.size() + 1));
        if (*text == nullptr) throw std::bad_alloc();
        std::memcpy(*text, whole.c_str(), whole.size() + 1);
        if (bytes != nullptr) *bytes = whole.size();
        return {};
    });
}

void sparkinfer_text_free(char* text) { std::free(text); }

sparkinfer_status sparkinfer_logits(sparkinfer_model* model, const int32_t* ids, size_t count, float* rows,
                                    size_t floats) {
    return guarded([&]() -> Result<void> {
        TRY_VOID(not_null(model, "model"));
        TRY_VOID(check_array(ids, count, "ids"));
        const size_t vocab = size_t(model->loaded->vocab());
        if (floats / vocab != count || floats % vocab != 0)
            return usage_error("rows has room for {} floats, expected {} ids × {}", floats, count, vocab);
        TRY_VOID(check_array(rows, floats, "rows"));
        return model->loaded->logits(tokens(ids, count), rows);
    });
}
