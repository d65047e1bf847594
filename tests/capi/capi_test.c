/* capi_test.c — the C interface as a C program uses it: capi_test MODEL OTHER_MODEL. Risk: a header that is
 * no C, results that differ between the ways to get them, bad arguments that crash or say nothing, threads in
 * one another's way. Prints what failed; "N passed, 0 failed" at the end. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <sparkinfer.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;

static void check(int ok, const char* what, int line) {
    if (ok) {
        ++passed;
        return;
    }
    ++failed;
    fprintf(stderr, "capi_test.c:%d: %s; last error: %s\n", line, what, sparkinfer_last_error());
}
#define CHECK(condition) check((condition) != 0, #condition, __LINE__)
/* The call fails with this status, and its sentence has this word. */
#define REFUSED(status, word, call)                                                          \
    do {                                                                                     \
        CHECK((call) == (status));                                                           \
        check(strstr(sparkinfer_last_error(), word) != NULL, #call " says " word, __LINE__); \
    } while (0)

enum { MAX_IDS = 256, MAX_TEXT = 4096, ANSWER = 24 };
static const char kPrompt[] = "Once upon a time there was a lighthouse";

static sparkinfer_model* load(const char* path) {
    sparkinfer_load_options options = SPARKINFER_LOAD_OPTIONS;
    sparkinfer_model* model = NULL;
    options.backend = "cpu";
    options.threads = 1;
    options.context = 256;
    options.sequences = 2;
    CHECK(sparkinfer_model_load(path, &options, &model) == SPARKINFER_OK);
    if (model == NULL) exit(1);
    return model;
}

static size_t prompt_ids(const sparkinfer_model* model, int32_t* ids) {
    size_t count = 0;
    CHECK(sparkinfer_tokenize(model, kPrompt, sizeof kPrompt - 1, SPARKINFER_PARSE_SPECIAL, ids, MAX_IDS,
                              &count) == SPARKINFER_OK);
    return count;
}

static sparkinfer_generate_options greedy(void) {
    sparkinfer_generate_options options = SPARKINFER_GENERATE_OPTIONS;
    options.temperature = 0;
    options.max_tokens = ANSWER;
    return options;
}

/* What is streamed, as one text. */
static void streamed(sparkinfer_model* model, const sparkinfer_generate_options* options, char* text) {
    int32_t ids[MAX_IDS];
    const size_t count = prompt_ids(model, ids);
    sparkinfer_stream* stream = NULL;
    const char* piece;
    size_t bytes, at = 0;
    sparkinfer_status status;
    CHECK(sparkinfer_stream_start(model, ids, count, options, &stream) == SPARKINFER_OK);
    while ((status = sparkinfer_stream_next(stream, &piece, &bytes)) == SPARKINFER_OK &&
           at + bytes < MAX_TEXT) {
        CHECK(strlen(piece) == bytes);
        memcpy(text + at, piece, bytes);
        at += bytes;
    }
    text[at] = '\0';
    CHECK(status == SPARKINFER_DONE);
    CHECK(sparkinfer_stream_next(stream, &piece, &bytes) == SPARKINFER_DONE && bytes == 0);
    sparkinfer_stream_free(stream);
}

static void test_loading(const char* path) {
    sparkinfer_model* model = (sparkinfer_model*)&model;
    sparkinfer_load_options options = SPARKINFER_LOAD_OPTIONS;
    CHECK(sparkinfer_version()[0] != '\0');
    CHECK(sparkinfer_last_error()[0] == '\0');
    REFUSED(SPARKINFER_BAD_INPUT, "no-such-model.gguf",
            sparkinfer_model_load("no-such-model.gguf", NULL, &model));
    CHECK(model == NULL);
    REFUSED(SPARKINFER_USAGE, "path", sparkinfer_model_load(NULL, NULL, &model));
    REFUSED(SPARKINFER_USAGE, "model", sparkinfer_model_load(path, NULL, NULL));
    options.struct_size = 3;
    REFUSED(SPARKINFER_USAGE, "struct_size", sparkinfer_model_load(path, &options, &model));
    options.struct_size = sizeof options;
    options.backend = "abacus";
    REFUSED(SPARKINFER_USAGE, "abacus", sparkinfer_model_load(path, &options, &model));
    options.backend = "cpu";
    options.context = 1000000;
    REFUSED(SPARKINFER_USAGE, "context is 1000000", sparkinfer_model_load(path, &options, &model));
    options.context = 64;
    options.threads = -1;
    REFUSED(SPARKINFER_USAGE, "threads is -1", sparkinfer_model_load(path, &options, &model));
    options.threads = 1;
    options.sequences = -1;
    REFUSED(SPARKINFER_USAGE, "sequences is -1", sparkinfer_model_load(path, &options, &model));
    CHECK(sparkinfer_model_vocab(NULL) == 0 && sparkinfer_model_context(NULL) == 0);
    CHECK(sparkinfer_model_backend(NULL) == NULL);
    sparkinfer_model_free(NULL);
    sparkinfer_stream_free(NULL);
    sparkinfer_text_free(NULL);
}

static void test_defaults(const char* path) {
    sparkinfer_model* model = NULL;
    CHECK(sparkinfer_model_load(path, NULL, &model) == SPARKINFER_OK);
    CHECK(sparkinfer_model_context(model) == 1024);
    CHECK(sparkinfer_model_vocab(model) == 512);
    CHECK(strcmp(sparkinfer_model_backend(model), "cpu") == 0 ||
          strcmp(sparkinfer_model_backend(model), "cuda") == 0);
    sparkinfer_model_free(model);
}

static void test_text(const sparkinfer_model* model) {
    int32_t ids[MAX_IDS], few[2] = {-7, -7}, bad[1] = {1 << 30};
    char text[MAX_TEXT];
    size_t count = 0, again = 0, bytes = 0;
    const char* chat = "[{\"role\": \"user\", \"content\": \"Hello\"}]";
    CHECK(sparkinfer_tokenize(model, kPrompt, sizeof kPrompt - 1, 0, NULL, 0, &count) == SPARKINFER_OK);
    CHECK(count > 2 && count < MAX_IDS);
    REFUSED(SPARKINFER_USAGE, "room for 1,",
            sparkinfer_tokenize(model, kPrompt, sizeof kPrompt - 1, 0, few, 1, &again));
    CHECK(few[0] == -7 && few[1] == -7 && again == count);
    CHECK(sparkinfer_tokenize(model, kPrompt, sizeof kPrompt - 1, 0, ids, MAX_IDS, &again) == SPARKINFER_OK);
    CHECK(sparkinfer_detokenize(model, ids, again, 0, NULL, 0, &bytes) == SPARKINFER_OK);
    CHECK(bytes == sizeof kPrompt - 1);
    CHECK(sparkinfer_detokenize(model, ids, again, SPARKINFER_KEEP_CONTROL, text, bytes, &bytes) ==
          SPARKINFER_OK);
    CHECK(memcmp(text, kPrompt, bytes) == 0);
    CHECK(sparkinfer_tokenize(model, NULL, 0, 0, ids, MAX_IDS, &count) == SPARKINFER_OK && count == 0);
    REFUSED(SPARKINFER_USAGE, "text", sparkinfer_tokenize(model, NULL, 1, 0, ids, MAX_IDS, &count));
    REFUSED(SPARKINFER_USAGE, "model", sparkinfer_tokenize(NULL, "x", 1, 0, ids, MAX_IDS, &count));
    REFUSED(SPARKINFER_USAGE, "count", sparkinfer_tokenize(model, "x", 1, 0, ids, MAX_IDS, NULL));
    REFUSED(SPARKINFER_USAGE, "flags", sparkinfer_tokenize(model, "x", 1, 64, ids, MAX_IDS, &count));
    REFUSED(SPARKINFER_BAD_INPUT, "UTF-8", sparkinfer_tokenize(model, "a\xff", 2, 0, ids, MAX_IDS, &count));
    REFUSED(SPARKINFER_BAD_INPUT, "id 1073741824",
            sparkinfer_detokenize(model, bad, 1, 0, text, MAX_TEXT, &bytes));
    REFUSED(SPARKINFER_USAGE, "ids", sparkinfer_detokenize(model, NULL, 4, 0, text, MAX_TEXT, &bytes));
    CHECK(sparkinfer_tokenize_chat(model, chat, strlen(chat), ids, MAX_IDS, &count) == SPARKINFER_OK &&
          count > 5);
    CHECK(sparkinfer_tokenize_chat(model, "{", 1, ids, MAX_IDS, &count) == SPARKINFER_BAD_INPUT);
    CHECK(sparkinfer_last_error()[0] != '\0');
}

static void test_answers(sparkinfer_model* model) {
    int32_t ids[MAX_IDS];
    const size_t count = prompt_ids(model, ids);
    sparkinfer_generate_options options = greedy();
    char *whole = NULL, *other = NULL, stop[3] = "";
    const char* stops[2] = {"", stop};
    char pieces[MAX_TEXT];
    size_t bytes = 0, less = 0;
    CHECK(sparkinfer_generate(model, ids, count, &options, &whole, &bytes) == SPARKINFER_OK);
    if (whole == NULL) return;
    CHECK(bytes > 4 && strlen(whole) == bytes);
    streamed(model, &options, pieces);
    CHECK(strcmp(pieces, whole) == 0);

    /* A stop string out of the middle of the answer ends it there. */
    memcpy(stop, whole + bytes / 2, 2);
    options.stop = stops;
    options.stop_count = 2;
    CHECK(sparkinfer_generate(model, ids, count, &options, &other, &less) == SPARKINFER_OK);
    CHECK(other != NULL && less == (size_t)(strstr(whole, stop) - whole) && memcmp(other, whole, less) == 0);
    sparkinfer_text_free(other);

    /* The same seed says the same, also in another call; a bias forces a token. */
    options = greedy();
    options.temperature = 1.5f;
    options.seeded = 1;
    options.seed = 7;
    CHECK(sparkinfer_generate(model, ids, count, &options, &other, NULL) == SPARKINFER_OK);
    streamed(model, &options, pieces);
    CHECK(other != NULL && strcmp(pieces, other) == 0 && strcmp(other, whole) != 0);
    sparkinfer_text_free(other);
    sparkinfer_text_free(whole);
}

static void test_bad_requests(sparkinfer_model* model) {
    int32_t ids[512] = {1 << 30};
    char* text = (char*)ids;
    const char* none[1] = {NULL};
    sparkinfer_generate_options options = greedy();
    REFUSED(SPARKINFER_BAD_INPUT, "prompt", sparkinfer_generate(model, ids, 0, &options, &text, NULL));
    CHECK(text == NULL);
    REFUSED(SPARKINFER_BAD_INPUT, "1073741824", sparkinfer_generate(model, ids, 1, &options, &text, NULL));
    ids[0] = 0;
    REFUSED(SPARKINFER_RESOURCES, "512 tokens", sparkinfer_generate(model, ids, 512, &options, &text, NULL));
    REFUSED(SPARKINFER_USAGE, "prompt", sparkinfer_generate(model, NULL, 3, &options, &text, NULL));
    REFUSED(SPARKINFER_USAGE, "model", sparkinfer_generate(NULL, ids, 1, &options, &text, NULL));
    REFUSED(SPARKINFER_USAGE, "text", sparkinfer_generate(model, ids, 1, &options, NULL, NULL));
    options.temperature = -0.5f;
    REFUSED(SPARKINFER_USAGE, "temperature", sparkinfer_generate(model, ids, 1, &options, &text, NULL));
    options = greedy();
    options.top_p = 2;
    REFUSED(SPARKINFER_USAGE, "top_p", sparkinfer_generate(model, ids, 1, &options, &text, NULL));
    options = greedy();
    options.max_tokens = 0;
    REFUSED(SPARKINFER_USAGE, "max_tokens", sparkinfer_generate(model, ids, 1, &options, &text, NULL));
    options = greedy();
    options.struct_size = 8;
    REFUSED(SPARKINFER_USAGE, "struct_size of", sparkinfer_generate(model, ids, 1, &options, &text, NULL));
    options = greedy();
    options.stop = none;
    options.stop_count = 1;
    REFUSED(SPARKINFER_USAGE, "stop string", sparkinfer_generate(model, ids, 1, &options, &text, NULL));
    REFUSED(SPARKINFER_USAGE, "stream", sparkinfer_stream_start(model, ids, 1, NULL, NULL));
    REFUSED(SPARKINFER_USAGE, "text", sparkinfer_stream_next(NULL, NULL, NULL));
    CHECK(sparkinfer_stream_tokens(NULL, NULL) == NULL &&
          strcmp(sparkinfer_stream_finish(NULL), "none") == 0);
}

/* Two streams of one model in turns, and logits in between: each says what it says alone. */
static void test_streams_in_turns(sparkinfer_model* model) {
    int32_t ids[MAX_IDS];
    const size_t count = prompt_ids(model, ids);
    const size_t vocab = (size_t)sparkinfer_model_vocab(model);
    const sparkinfer_generate_options options = greedy();
    char alone[MAX_TEXT], text[2][MAX_TEXT] = {"", ""};
    float* rows = malloc(count * vocab * sizeof *rows);
    sparkinfer_stream* streams[2] = {NULL, NULL};
    int open = 2, step = 0;
    streamed(model, &options, alone);
    for (int i = 0; i < 2; ++i)
        CHECK(sparkinfer_stream_start(model, ids, count, &options, &streams[i]) == SPARKINFER_OK);
    while (open > 0) {
        open = 0;
        for (int i = 0; i < 2; ++i) {
            const char* piece;
            size_t bytes;
            if (sparkinfer_stream_next(streams[i], &piece, &bytes) != SPARKINFER_OK) continue;
            strcat(text[i], piece);
            ++open;
        }
        if (++step == 5) CHECK(sparkinfer_logits(model, ids, count, rows, count * vocab) == SPARKINFER_OK);
    }
    for (int i = 0; i < 2; ++i) {
        size_t tokens = 0;
        CHECK(strcmp(text[i], alone) == 0);
        CHECK(strcmp(sparkinfer_stream_finish(streams[i]), "length") == 0);
        CHECK(sparkinfer_stream_tokens(streams[i], &tokens) != NULL && tokens == ANSWER);
        sparkinfer_stream_free(streams[i]);
    }
    free(rows);
}

static void test_logits(sparkinfer_model* model) {
    int32_t ids[MAX_IDS];
    const size_t count = prompt_ids(model, ids), vocab = (size_t)sparkinfer_model_vocab(model);
    const size_t floats = count * vocab;
    float* rows = malloc((floats + 1) * sizeof *rows);
    const sparkinfer_generate_options options = greedy();
    sparkinfer_stream* stream = NULL;
    const char* piece;
    size_t bytes, tokens = 0;
    int32_t best = 0;
    rows[floats] = 12345;
    CHECK(sparkinfer_logits(model, ids, count, rows, floats) == SPARKINFER_OK);
    CHECK(rows[floats] == 12345);
    for (size_t i = 0; i < vocab; ++i)
        if (rows[(count - 1) * vocab + i] > rows[(count - 1) * vocab + (size_t)best]) best = (int32_t)i;
    CHECK(sparkinfer_stream_start(model, ids, count, &options, &stream) == SPARKINFER_OK);
    while (tokens == 0 && sparkinfer_stream_next(stream, &piece, &bytes) == SPARKINFER_OK)
        sparkinfer_stream_tokens(stream, &tokens);
    CHECK(tokens > 0 && sparkinfer_stream_tokens(stream, NULL)[0] == best);
    sparkinfer_stream_free(stream);
    REFUSED(SPARKINFER_USAGE, "expected", sparkinfer_logits(model, ids, count, rows, floats - 1));
    REFUSED(SPARKINFER_USAGE, "expected", sparkinfer_logits(model, ids, count, rows, floats + vocab));
    REFUSED(SPARKINFER_USAGE, "rows", sparkinfer_logits(model, ids, count, NULL, floats));
    REFUSED(SPARKINFER_USAGE, "model", sparkinfer_logits(NULL, ids, count, rows, floats));
    REFUSED(SPARKINFER_BAD_INPUT, "token", sparkinfer_logits(model, ids, 0, rows, 0));
    ids[1] = -1;
    REFUSED(SPARKINFER_BAD_INPUT, "id -1", sparkinfer_logits(model, ids, 2, rows, 2 * vocab));
    free(rows);
}

static void test_freed_in_any_order(const char* path) {
    int32_t ids[MAX_IDS];
    sparkinfer_model* model = load(path);
    const size_t count = prompt_ids(model, ids);
    const char* piece;
    size_t bytes;
    sparkinfer_stream *stream = NULL, *left = NULL;
    CHECK(sparkinfer_stream_start(model, ids, count, NULL, &stream) == SPARKINFER_OK);
    CHECK(sparkinfer_stream_start(model, ids, count, NULL, &left) == SPARKINFER_OK);
    sparkinfer_model_free(model);
    CHECK(sparkinfer_stream_next(stream, &piece, &bytes) == SPARKINFER_OK);
    sparkinfer_stream_free(left);
    sparkinfer_stream_free(stream);
}

struct work {
    sparkinfer_model* model;
    char text[MAX_TEXT];
    sparkinfer_status status;
    char* error;
};

/* No check here: its counts are of one thread. */
static void* answer_in_a_thread(void* argument) {
    struct work* work = argument;
    const sparkinfer_generate_options options = greedy();
    int32_t ids[MAX_IDS];
    size_t count = 0;
    char* text = NULL;
    for (int round = 0; round < 3; ++round) {
        work->status = sparkinfer_tokenize(work->model, kPrompt, sizeof kPrompt - 1, SPARKINFER_PARSE_SPECIAL,
                                           ids, MAX_IDS, &count);
        if (work->status != SPARKINFER_OK) return NULL;
        work->status = sparkinfer_generate(work->model, ids, count, &options, &text, NULL);
        if (work->status != SPARKINFER_OK) return NULL;
        snprintf(work->text, sizeof work->text, "%s", text);
        sparkinfer_text_free(text);
    }
    sparkinfer_generate(work->model, NULL, 1, NULL, &text, NULL);
    work->error = strdup(sparkinfer_last_error());
    return NULL;
}

/* Two threads with a model each, two that share one: every answer is that of one thread alone. */
static void test_threads(sparkinfer_model* model, sparkinfer_model* other) {
    char expected[2][MAX_TEXT];
    sparkinfer_model* models[4] = {model, other, other, model};
    struct work work[4];
    pthread_t threads[4];
    const sparkinfer_generate_options options = greedy();
    streamed(model, &options, expected[0]);
    streamed(other, &options, expected[1]);
    CHECK(strcmp(expected[0], expected[1]) != 0);
    REFUSED(SPARKINFER_USAGE, "path", sparkinfer_model_load(NULL, NULL, &models[0]));
    models[0] = model;
    for (int i = 0; i < 4; ++i) {
        work[i].model = models[i];
        work[i].error = NULL;
        CHECK(pthread_create(&threads[i], NULL, answer_in_a_thread, &work[i]) == 0);
    }
    for (int i = 0; i < 4; ++i) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        CHECK(work[i].status == SPARKINFER_OK);
        CHECK(strcmp(work[i].text, expected[models[i] == other]) == 0);
        CHECK(work[i].error != NULL && strstr(work[i].error, "prompt") != NULL);
        free(work[i].error);
    }
    CHECK(strstr(sparkinfer_last_error(), "path") != NULL); /* of this thread, still */
}

int main(int argc, char** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: capi_test MODEL OTHER_MODEL\n");
        return 2;
    }
    test_loading(argv[1]);
    test_defaults(argv[1]);
    sparkinfer_model* model = load(argv[1]);
    sparkinfer_model* other = load(argv[2]);
    test_text(model);
    test_answers(model);
    test_bad_requests(model);
    test_streams_in_turns(model);
    test_logits(model);
    test_logits(other);
    test_freed_in_any_order(argv[2]);
    test_threads(model, other);
    sparkinfer_model_free(other);
    sparkinfer_model_free(model);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
