//! The text handling of sparkinfer behind a C ABI: tokenizers over the crate `tokenizers`, chat templates over
//! `minijinja`. The C++ face is src/text; the declarations there (src/text/ffi.h) mirror this file.
//!
//! Every entry catches panics. A call returns 0 or one of `ErrorKind`'s values (core/result.h), and then `error`
//! holds one sentence. Handles are immutable after creation and may be used from any thread.

mod added;
mod apart;
mod classes;
mod free_text;
mod grammar;
mod provenance;
mod python;
mod schema;
mod schema_check;
mod split;
mod template;
mod tokenizer;

use added::Control;
use grammar::{GrammarEnv, GrammarMatcher};
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};
use template::{ChatTemplate, Request};
use tokenizer::{GgufVocabulary, Tokenizer};

/// What a call failed with.
pub struct Failure {
    kind: i32,
    message: String,
}

pub(crate) fn bad_input(message: String) -> Failure {
    Failure { kind: 3, message }
}
pub(crate) fn out_of_resources(message: String) -> Failure {
    Failure { kind: 4, message }
}
pub(crate) fn internal(message: String) -> Failure {
    Failure { kind: 5, message }
}

/// Borrowed bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Str {
    data: *const u8,
    size: usize,
}

/// Bytes made here; give them back with si_text_free_bytes.
#[repr(C)]
pub struct Bytes {
    data: *mut u8,
    size: usize,
}

/// Token ids made here; give them back with si_text_free_ids.
#[repr(C)]
pub struct Ids {
    data: *mut u32,
    size: usize,
}

/// A byte range of a text.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ByteRange {
    begin: usize,
    end: usize,
}

/// Ranges made here; give them back with si_text_free_ranges.
#[repr(C)]
pub struct Ranges {
    data: *mut ByteRange,
    size: usize,
}

fn into_raw<T>(items: Vec<T>) -> (*mut T, usize) {
    let boxed = items.into_boxed_slice();
    let size = boxed.len();
    (Box::into_raw(boxed).cast(), size)
}

/// # Safety
/// `data` and `size` are what `into_raw` gave.
unsafe fn drop_raw<T>(data: *mut T, size: usize) {
    if !data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(data, size)));
    }
}

/// # Safety
/// `data` is valid for `size` items, or `size` is 0.
unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

impl Str {
    /// # Safety
    /// The bytes live as long as the result.
    unsafe fn text<'a>(self, what: &str) -> Result<&'a str, Failure> {
        let bytes = slice(self.data, self.size);
        std::str::from_utf8(bytes)
            .map_err(|e| bad_input(format!("{what} is not valid UTF-8 at byte {}", e.valid_up_to())))
    }
}

/// Runs one entry: a failure or a panic becomes a code and a sentence.
fn entry(error: *mut Bytes, f: impl FnOnce() -> Result<(), Failure>) -> i32 {
    // Panics are reported through `error`; a library prints nothing. No other Rust lives in the process.
    static QUIET: std::sync::Once = std::sync::Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let outcome = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().cloned();
        let what = what.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(internal(format!("text handling failed: {}", what.unwrap_or_default())))
    });
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            let (data, size) = into_raw(failure.message.into_bytes());
            // SAFETY: the caller passes a valid place for the message.
            unsafe { *error = Bytes { data, size } };
            failure.kind
        }
    }
}

/// The vocabulary of a GGUF file, types with the file's values.
#[repr(C)]
pub struct GgufInput {
    pre: Str,
    tokens: *const Str,
    types: *const u8,
    tokens_count: usize,
    merges: *const Str,
    merges_count: usize,
    ignore_merges: bool,
    bos: i64, // -1: none
    eos: i64,
}

/// # Safety
/// All pointers are valid for their counts; `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn si_tokenizer_from_gguf(
    input: *const GgufInput,
    out: *mut *mut Tokenizer,
    error: *mut Bytes,
) -> i32 {
    entry(error, || {
        let v = &*input;
        let texts = |data, count, what: &str| -> Result<Vec<&str>, Failure> {
            let items = slice::<Str>(data, count).iter().enumerate();
            items.map(|(i, s)| s.text(&format!("{what}[{i}]"))).collect()
        };
        let vocabulary = GgufVocabulary {
            pre: v.pre.text("tokenizer.ggml.pre")?,
            tokens: texts(v.tokens, v.tokens_count, "tokenizer.ggml.tokens")?,
            types: slice(v.types, v.tokens_count),
            merges: texts(v.merges, v.merges_count, "tokenizer.ggml.merges")?,
            ignore_merges: v.ignore_merges,
            bos: u32::try_from(v.bos).ok(),
            eos: u32::try_from(v.eos).ok(),
        };
        *out = Box::into_raw(Box::new(Tokenizer::from_gguf(&vocabulary)?));
        Ok(())
    })
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn si_tokenizer_from_json(
    json: Str,
    out: *mut *mut Tokenizer,
    error: *mut Bytes,
) -> i32 {
    entry(error, || {
        *out = Box::into_raw(Box::new(Tokenizer::from_json(json.text("tokenizer.json")?)?));
        Ok(())
    })
}

/// # Safety
/// `handle` came from a constructor above and is not used again.
#[no_mangle]
pub unsafe extern "C" fn si_tokenizer_free(handle: *mut Tokenizer) {
    if !handle.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(handle))));
    }
}

/// Views into the tokenizer, alive as long as it is.
#[repr(C)]
pub struct Table {
    pieces: *const u8,
    offsets: *const u64, // size + 1 entries
    kinds: *const u8,
    size: usize,
}

/// # Safety
/// `handle` is alive; `out` is writable.
#[no_mangle]
pub unsafe extern "C" fn si_tokenizer_table(handle: *const Tokenizer, out: *mut Table) {
    let t = &*handle;
    *out = Table {
        pieces: t.pieces.as_ptr(),
        offsets: t.offsets.as_ptr(),
        kinds: t.kinds.as_ptr(),
        size: t.kinds.len(),
    };
}

/// The id of a token by its text, -1 if there is none.
/// # Safety
/// `handle` is alive, `text` readable.
#[no_mangle]
pub unsafe extern "C" fn si_tokenizer_find(handle: *const Tokenizer, text: Str) -> i64 {
    let find = || text.text("the token").ok().and_then(|t| (*handle).find(t)).map_or(-1, i64::from);
    catch_unwind(AssertUnwindSafe(find)).unwrap_or(-1)
}

/// Encodes `text`. `control`: 0 nowhere, 1 everywhere, 2 outside the guarded ranges (sorted, disjoint).
/// # Safety
/// All pointers are valid for their counts; `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn si_tokenizer_encode(
    handle: *const Tokenizer,
    text: Str,
    control: i32,
    guarded: *const ByteRange,
    guarded_count: usize,
    add_special: bool,
    out: *mut Ids,
    error: *mut Bytes,
) -> i32 {
    entry(error, || {
        let ranges: Vec<Range<usize>> =
            slice(guarded, guarded_count).iter().map(|r| r.begin..r.end).collect();
        let control = match control {
            0 => Control::Nowhere,
            1 => Control::Everywhere,
            _ => Control::Outside(&ranges),
        };
        let ids = (*handle).encode(text.text("the text")?, control, add_special)?;
        let (data, size) = into_raw(ids);
        *out = Ids { data, size };
        Ok(())
    })
}

/// Compiles a chat template. Control tokens are given one by one, or by the text of a tokenizer.json. `specials` is a JSON object of the model's special tokens by name (bos_token, …).
/// # Safety
/// All pointers are valid for their counts; `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn si_template_new(
    source: Str,
    control: *const Str,
    control_count: usize,
    tokenizer_json: Str,
    specials: Str,
    out: *mut *mut ChatTemplate,
    error: *mut Bytes,
) -> i32 {
    entry(error, || {
        let mut texts = tokenizer::control_texts(tokenizer_json.text("tokenizer.json")?)?;
        for text in slice(control, control_count) {
            texts.push(text.text("a control token")?.to_owned());
        }
        let specials = specials.text("the special tokens")?;
        let template = ChatTemplate::new(source.text("the chat template")?, texts, specials)?;
        *out = Box::into_raw(Box::new(template));
        Ok(())
    })
}

/// # Safety
/// `handle` came from si_template_new and is not used again.
#[no_mangle]
pub unsafe extern "C" fn si_template_free(handle: *mut ChatTemplate) {
    if !handle.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(handle))));
    }
}

/// JSON texts, empty for none.
#[repr(C)]
pub struct RenderInput {
    messages: Str,
    tools: Str,
    kwargs: Str,
    add_generation_prompt: bool,
    has_now: bool,
    now: i64,
}

/// # Safety
/// All pointers are valid for their counts; the outs and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn si_template_render(
    handle: *const ChatTemplate,
    input: *const RenderInput,
    out_text: *mut Bytes,
    out_guarded: *mut Ranges,
    error: *mut Bytes,
) -> i32 {
    entry(error, || {
        let input = &*input;
        let rendered = (*handle).render(Request {
            messages: input.messages.text("messages")?.to_owned(),
            tools: input.tools.text("tools")?.to_owned(),
            kwargs: input.kwargs.text("chat_template_kwargs")?.to_owned(),
            add_generation_prompt: input.add_generation_prompt,
            now: input.has_now.then_some(input.now),
        })?;
        let ranges = rendered.guarded.iter().map(|r| ByteRange { begin: r.start, end: r.end }).collect();
        let (data, size) = into_raw(rendered.text.into_bytes());
        *out_text = Bytes { data, size };
        let (data, size) = into_raw::<ByteRange>(ranges);
        *out_guarded = Ranges { data, size };
        Ok(())
    })
}

/// The vocabulary of `tokenizer` for constrained decoding; it needs the tokenizer only during the call.
/// # Safety
/// `tokenizer` is alive, `end_tokens` valid for its count; `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn si_grammar_env_new(
    tokenizer: *const Tokenizer,
    end_tokens: *const u32,
    end_tokens_count: usize,
    out: *mut *mut GrammarEnv,
    error: *mut Bytes,
) -> i32 {
    entry(error, || {
        let env = GrammarEnv::new(&*tokenizer, slice(end_tokens, end_tokens_count))?;
        *out = Box::into_raw(Box::new(env));
        Ok(())
    })
}

/// # Safety
/// `handle` came from si_grammar_env_new and is not used again.
#[no_mangle]
pub unsafe extern "C" fn si_grammar_env_free(handle: *mut GrammarEnv) {
    if !handle.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(handle))));
    }
}

/// Compiles a grammar (grammar.rs says what it looks like) to a matcher at its start, and says about how many
/// bytes it takes.
/// # Safety
/// `handle` is alive, `grammar` readable; the outs and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn si_grammar_compile(
    handle: *const GrammarEnv,
    grammar: Str,
    out: *mut *mut GrammarMatcher,
    out_bytes: *mut usize,
    error: *mut Bytes,
) -> i32 {
    entry(error, || {
        let matcher = (*handle).compile(grammar.text("the grammar")?)?;
        *out_bytes = matcher.bytes;
        *out = Box::into_raw(Box::new(matcher));
        Ok(())
    })
}

/// # Safety
/// `handle` is alive and used by no other thread that changes it; `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn si_matcher_clone(
    handle: *const GrammarMatcher,
    out: *mut *mut GrammarMatcher,
    error: *mut Bytes,
) -> i32 {
    entry(error, || {
        *out = Box::into_raw(Box::new((*handle).copy()));
        Ok(())
    })
}

/// # Safety
/// `handle` came from a call above and is not used again.
#[no_mangle]
pub unsafe extern "C" fn si_matcher_free(handle: *mut GrammarMatcher) {
    if !handle.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(handle))));
    }
}

/// # Safety
/// `handle` is alive and used by no other thread; `out_allowed` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn si_matcher_advance(
    handle: *mut GrammarMatcher,
    token: u32,
    out_allowed: *mut bool,
    error: *mut Bytes,
) -> i32 {
    entry(error, || {
        *out_allowed = (*handle).advance(token)?;
        Ok(())
    })
}

/// # Safety
/// As above; `bits` is writable for `words` items.
#[no_mangle]
pub unsafe extern "C" fn si_matcher_mask(
    handle: *mut GrammarMatcher,
    bits: *mut u32,
    words: usize,
    error: *mut Bytes,
) -> i32 {
    let bits = std::slice::from_raw_parts_mut(bits, words);
    let code = entry(error, || (*handle).mask(bits));
    if bits.iter().all(|word| *word == 0) {
        (*handle).allow_end(bits); // also after a panic
    }
    code
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn si_matcher_rollback(
    handle: *mut GrammarMatcher,
    tokens: usize,
    error: *mut Bytes,
) -> i32 {
    entry(error, || (*handle).rollback(tokens))
}

/// # Safety
/// As above; `out` is writable.
#[no_mangle]
pub unsafe extern "C" fn si_matcher_accepting(
    handle: *mut GrammarMatcher,
    out: *mut bool,
    error: *mut Bytes,
) -> i32 {
    entry(error, || {
        *out = (*handle).accepting()?;
        Ok(())
    })
}

/// A client's JSON Schema as si_grammar_compile takes it: {"schema": …, "notices": [{"pointer", "text"}, …]}.
/// # Safety
/// `schema` is readable; `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn si_schema_prepare(
    schema: Str,
    strict: bool,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    entry(error, || {
        let prepared = schema::prepare(schema.text("the schema")?, strict)?;
        let (data, size) = into_raw(prepared.to_json().into_bytes());
        *out = Bytes { data, size };
        Ok(())
    })
}

/// # Safety
/// What a call above gave, once.
#[no_mangle]
pub unsafe extern "C" fn si_text_free_bytes(bytes: Bytes) {
    drop_raw(bytes.data, bytes.size);
}
/// # Safety
/// What a call above gave, once.
#[no_mangle]
pub unsafe extern "C" fn si_text_free_ids(ids: Ids) {
    drop_raw(ids.data, ids.size);
}
/// # Safety
/// What a call above gave, once.
#[no_mangle]
pub unsafe extern "C" fn si_text_free_ranges(ranges: Ranges) {
    drop_raw(ranges.data, ranges.size);
}
