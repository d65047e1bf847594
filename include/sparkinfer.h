/* sparkinfer.h — the engine for other languages: load a model, tokens and text, answers, logits. C99 or C++.
 *
 *     sparkinfer_model* model = NULL;
 *     if (sparkinfer_model_load("model.gguf", NULL, &model) != SPARKINFER_OK)
 *         fprintf(stderr, "%s\n", sparkinfer_last_error());
 *
 * Errors    A function that can fail returns a sparkinfer_status. Anything but OK and DONE leaves one
 * sentence in sparkinfer_last_error() of the calling thread, and writes nothing else than the header says. No
 * C++ exception leaves the library. It prints nothing, and handles no signals. Owners    What a function
 * gives through a `**` to a handle is the caller's, to be freed by that handle's free function; NULL may be
 * freed. Everything passed in is copied and may be freed after the call. A stream keeps its model alive: they
 * may be freed in any order. Threads   Any function may be called by any thread. Calls on one model that
 * compute take turns, several models do not wait for one another. One stream is used by one thread at a time,
 * and a handle is freed when no other thread is in a call with it. A process that forked may use no model
 * loaded before. Files     Weights of a CPU lie in the map of their file, which must not change while the
 * model is loaded: one that is cut short ends the process by SIGBUS.
 */
#ifndef SPARKINFER_H
#define SPARKINFER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The values of the errors are the exit codes of the command line. */
typedef enum sparkinfer_status {
    SPARKINFER_OK = 0,
    SPARKINFER_DONE = 1,      /* the stream has ended; no error */
    SPARKINFER_USAGE = 2,     /* an argument is off: NULL, a range, a size */
    SPARKINFER_BAD_INPUT = 3, /* a file, a prompt or an id says something impossible */
    SPARKINFER_RESOURCES = 4, /* memory, context: it would work on a bigger machine */
    SPARKINFER_INTERNAL = 5   /* the device failed, or the library did */
} sparkinfer_status;

typedef struct sparkinfer_model sparkinfer_model;   /* a model, ready to compute */
typedef struct sparkinfer_stream sparkinfer_stream; /* one answer that is under way */

/* "0.1.0"; lasts as long as the library. */
const char* sparkinfer_version(void);

/* The sentence of the last call of this thread that failed, "" before; lasts until the next that fails. */
const char* sparkinfer_last_error(void);

/* ---- models */

typedef struct sparkinfer_load_options {
    size_t struct_size;  /* sizeof(sparkinfer_load_options) */
    const char* backend; /* "auto", "cpu" or "cuda"; NULL: "auto", which is the GPU where one can be used */
    int32_t threads;     /* where a CPU computes, 1 to 512; 0: one a core that this process may use */
    int32_t context;     /* most tokens of prompt and answer; 0: the model's own, as far as memory reaches */
    int32_t sequences;   /* answers computed at once, others wait; each takes memory for `context`; 0: 1 */
} sparkinfer_load_options;
#define SPARKINFER_LOAD_OPTIONS {sizeof(sparkinfer_load_options), NULL, 0, 0, 0}

/* Loads a GGUF (of a split one: its first file) or a folder of safetensors. `options` may be NULL: the
 * defaults. *model is NULL after an error. */
sparkinfer_status sparkinfer_model_load(const char* path, const sparkinfer_load_options* options,
                                        sparkinfer_model** model);
void sparkinfer_model_free(sparkinfer_model* model);

/* Of a NULL model: 0 and NULL. */
int32_t sparkinfer_model_vocab(
    const sparkinfer_model* model); /* ids are 0 … vocab - 1; floats of a row of logits */
int32_t sparkinfer_model_context(const sparkinfer_model* model);     /* most tokens of prompt and answer */
const char* sparkinfer_model_backend(const sparkinfer_model* model); /* "cpu" or "cuda"; the model's */

/* ---- text and tokens
 * Text is UTF-8 of a given number of bytes. Results go to a buffer of the caller's with room for `capacity`
 * ids or bytes; *count is how many there are. When they do not fit, nothing is written and the status is
 * USAGE; a NULL buffer asks for the count alone. */

enum {
    SPARKINFER_ADD_SPECIAL = 1,   /* with what the file asks to put around a text: a BOS, an EOS */
    SPARKINFER_PARSE_SPECIAL = 2, /* control tokens in the text are recognised; else they are plain text */
    SPARKINFER_KEEP_CONTROL = 4   /* control tokens are shown in the text */
};

/* flags: SPARKINFER_ADD_SPECIAL, SPARKINFER_PARSE_SPECIAL. */
sparkinfer_status sparkinfer_tokenize(const sparkinfer_model* model, const char* text, size_t bytes,
                                      unsigned flags, int32_t* ids, size_t capacity, size_t* count);

/* A conversation in the model's chat template, up to where its answer begins. `messages` is JSON as OpenAI's
 * API has it:
 * [{"role": "user", "content": "Hello"}]. Control tokens in the messages are plain text. */
sparkinfer_status sparkinfer_tokenize_chat(const sparkinfer_model* model, const char* messages, size_t bytes,
                                           int32_t* ids, size_t capacity, size_t* count);

/* flags: SPARKINFER_KEEP_CONTROL. The text is not ended by a NUL; incomplete UTF-8 becomes U+FFFD. */
sparkinfer_status sparkinfer_detokenize(const sparkinfer_model* model, const int32_t* ids, size_t id_count,
                                        unsigned flags, char* text, size_t capacity, size_t* count);

/* ---- answers */

typedef struct sparkinfer_logit_bias {
    int32_t id;
    float bias; /* added to the token's logit */
} sparkinfer_logit_bias;

/* For a field that is as the model's file suggests, else as the command line's default. */
#define SPARKINFER_FROM_MODEL (-2)

typedef struct sparkinfer_generate_options {
    size_t struct_size;      /* sizeof(sparkinfer_generate_options) */
    int32_t max_tokens;      /* at least 1; -1: to an end token or the end of the context */
    int32_t top_k;           /* at least 0; 0 is off */
    int32_t repeat_last_n;   /* tokens that repeat_penalty looks back; 0: off, -1: all */
    float temperature;       /* at least 0; 0: always the likeliest token */
    float top_p;             /* (0, 1]; 1 is off */
    float min_p;             /* [0, 1]; 0 is off */
    float repeat_penalty;    /* above 0; 1 is off */
    float presence_penalty;  /* [-2, 2] */
    float frequency_penalty; /* [-2, 2] */
    int32_t seeded;          /* 0: another seed each time */
    uint64_t seed;
    const char* const*
        stop; /* strings that end the answer and do not appear in it; empty ones count for nothing */
    size_t stop_count;
    const sparkinfer_logit_bias* logit_bias;
    size_t logit_bias_count; /* at most 512 */
} sparkinfer_generate_options;
#define SPARKINFER_GENERATE_OPTIONS       \
    {sizeof(sparkinfer_generate_options), \
     -1,                                  \
     SPARKINFER_FROM_MODEL,               \
     SPARKINFER_FROM_MODEL,               \
     SPARKINFER_FROM_MODEL,               \
     SPARKINFER_FROM_MODEL,               \
     SPARKINFER_FROM_MODEL,               \
     SPARKINFER_FROM_MODEL,               \
     0.0f,                                \
     0.0f,                                \
     0,                                   \
     0,                                   \
     NULL,                                \
     0,                                   \
     NULL,                                \
     0}

/* Begins the answer to a prompt of tokens; `options` may be NULL: the defaults. *stream is NULL after an
 * error. */
sparkinfer_status sparkinfer_stream_start(sparkinfer_model* model, const int32_t* prompt, size_t prompt_count,
                                          const sparkinfer_generate_options* options,
                                          sparkinfer_stream** stream);

/* Computes one step and gives the text that came of it: whole characters, maybe none (while a long prompt is
 * read, or while another stream is answered). *text is the stream's until the next call with it, ended by a
 * NUL. DONE at the end. */
sparkinfer_status sparkinfer_stream_next(sparkinfer_stream* stream, const char** text, size_t* bytes);

/* The tokens so far, also those of a stop string, without the end token; the stream's until the next call
 * with it. */
const int32_t* sparkinfer_stream_tokens(const sparkinfer_stream* stream, size_t* count);

/* How it ended: "stop" (an end token or a stop string), "length", "error"; "none" while it is under way. */
const char* sparkinfer_stream_finish(const sparkinfer_stream* stream);

/* Ends the answer wherever it is. */
void sparkinfer_stream_free(sparkinfer_stream* stream);

/* A whole answer. *text is the caller's (sparkinfer_text_free), ended by a NUL; NULL after an error. `bytes`
 * may be NULL. */
sparkinfer_status sparkinfer_generate(sparkinfer_model* model, const int32_t* prompt, size_t prompt_count,
                                      const sparkinfer_generate_options* options, char** text, size_t* bytes);
void sparkinfer_text_free(char* text);

/* ---- logits */

/* The raw logits of a prompt: row i, of vocab floats, predicts the token behind token i. `floats` is the room
 * in `rows`, exactly count × vocab. Streams of the model that are under way are computed to their ends first;
 * their text is kept. */
sparkinfer_status sparkinfer_logits(sparkinfer_model* model, const int32_t* ids, size_t count, float* rows,
                                    size_t floats);

#ifdef __cplusplus
}
#endif
#endif
