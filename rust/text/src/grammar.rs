//! Constrained decoding over the crate `llguidance`: which tokens may come next so that the text follows a grammar.
//! A grammar is a JSON list of parts, the first of which is the start; parts refer to each other as @name:
//!     [{"name": "answer", "lark": "start: @s0"}, {"name": "s0", "json_schema": {…}}, {"name": "r", "regex": "a+"}]
//! The face in C++ is src/text/grammar.h.

use crate::free_text::FreeText;
use crate::tokenizer::{Tokenizer, KIND_CONTROL, KIND_UNUSED};
use crate::{bad_input, internal, out_of_resources, Failure};
use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde::Deserialize;
use serde_json::Value;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

/// Longest text of one grammar, with all its parts.
const MAX_GRAMMAR_BYTES: usize = 4 << 20;
const MAX_PARTS: usize = 4096;
/// The crate parses grammars and schemas recursively: deeper ones are refused before, and what is left has room.
const MAX_LARK_DEPTH: usize = 64;
const MAX_LARK_RULES: usize = 20_000;
const COMPILE_STACK_BYTES: usize = 256 << 20; // reserved, touched only as far as needed
const BYTES_A_BYTE: usize = 32; // of a compiled grammar for each of its text, roughly
const MIN_BYTES: usize = 1 << 16;
/// Control tokens that are text wherever they are in a vocabulary: models write them, parsers read them.
const TEXT_CONTROL: [&str; 4] = ["<think>", "</think>", "<tool_call>", "</tool_call>"];

/// What one grammar may cost: each bound is some tens of milliseconds of work, or some tens of megabytes.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2000,
        initial_lexer_fuel: 2_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 32_000,
        max_grammar_size: 500_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// A vocabulary as the crate needs it; shared by all grammars of a model.
pub struct GrammarEnv {
    factory: ParserFactory,
    free_text: Arc<FreeText>,
    end_tokens: Arc<Vec<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    name: String,
    lark: Option<String>,
    regex: Option<String>,
    json_schema: Option<Value>,
}

/// The bytes of each token; none for one that no grammar may produce.
fn words(tokenizer: &Tokenizer, end_tokens: &[u32]) -> Vec<Vec<u8>> {
    let word = |id: usize| {
        let piece = &tokenizer.pieces[tokenizer.offsets[id] as usize..tokenizer.offsets[id + 1] as usize];
        let text = match tokenizer.kinds[id] {
            KIND_UNUSED => false,
            KIND_CONTROL => TEXT_CONTROL.iter().any(|t| t.as_bytes() == piece),
            _ => !end_tokens.contains(&(id as u32)),
        };
        // A token of the single byte 255 would read as the crate's mark of special tokens; no text holds it.
        if text && piece != [TokTrie::SPECIAL_TOKEN_MARKER] {
            piece.to_vec()
        } else {
            Vec::new()
        }
    };
    (0..tokenizer.kinds.len()).map(word).collect()
}

impl GrammarEnv {
    pub fn new(tokenizer: &Tokenizer, end_tokens: &[u32]) -> Result<GrammarEnv, Failure> {
        let size = tokenizer.kinds.len() as u32;
        if end_tokens.is_empty() || end_tokens.iter().any(|&t| t >= size) {
            return Err(bad_input(format!(
                "the tokenizer has no end token below {size}, which constrained decoding needs"
            )));
        }
        let trie = TokTrie::from(&TokRxInfo::new(size, end_tokens[0]), &words(tokenizer, end_tokens));
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(end_tokens)));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|e| internal(format!("the vocabulary cannot be indexed: {e}")))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        let free_text = Arc::new(FreeText::new(&env, factory.slicer()));
        Ok(GrammarEnv { factory, free_text, end_tokens: Arc::new(end_tokens.to_vec()) })
    }

    /// Errors: bad_input with what the grammar has wrong, or which limit it breaks.
    pub fn compile(&self, grammar: &str) -> Result<GrammarMatcher, Failure> {
        let text_bytes = grammar.len();
        let grammar = read(grammar)?;
        let compiled = on_deep_stack(|| {
            let mut parser = self.factory.create_parser(grammar).map_err(|e| refused(&e.to_string()))?;
            let bytes = parser.parser.lexer_stats().num_bytes + text_bytes * BYTES_A_BYTE + MIN_BYTES;
            parser.bias_computer = self.free_text.clone();
            let mut matcher = Matcher::new(Ok(parser));
            // The first mask warms the lexer, and what allows no text at all shows here.
            matcher.compute_mask_or_eos().map_err(|e| refused(&e.to_string()))?;
            Ok((matcher, bytes))
        })?;
        let (matcher, bytes) = compiled?;
        let (env, end_tokens) = (self.factory.tok_env().clone(), self.end_tokens.clone());
        Ok(GrammarMatcher { matcher, env, end_tokens, bytes, unread: 0, ended: false, error: None })
    }
}

/// Runs `f` where deep recursion has room; a panic of it is a failure.
pub fn on_deep_stack<T: Send>(f: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    std::thread::scope(|scope| {
        let run = std::thread::Builder::new()
            .stack_size(COMPILE_STACK_BYTES)
            .spawn_scoped(scope, || catch_unwind(AssertUnwindSafe(f)))
            .map_err(|e| out_of_resources(format!("no thread for compiling a grammar: {e}")))?;
        let outcome = run.join().unwrap_or_else(Err);
        outcome.map_err(|_| bad_input("the grammar is beyond what can be compiled".into()))
    })
}

/// The crate's message as one sentence.
pub fn refused(error: &str) -> Failure {
    let line = error.split("<non-verbose/>").next().unwrap_or(error);
    let line = line.split('\n').find(|l| !l.trim().is_empty()).unwrap_or("no reason given").trim();
    bad_input(format!("the grammar cannot be used: {line}"))
}

fn read(text: &str) -> Result<TopLevelGrammar, Failure> {
    if text.len() > MAX_GRAMMAR_BYTES {
        return Err(bad_input(format!(
            "the grammar has {} bytes, at most {MAX_GRAMMAR_BYTES} are allowed",
            text.len()
        )));
    }
    let parts: Vec<Part> =
        serde_json::from_str(text).map_err(|e| bad_input(format!("the grammar's parts: {e}")))?;
    if parts.is_empty() || parts.len() > MAX_PARTS {
        return Err(bad_input(format!("the grammar has {} parts, expected 1 to {MAX_PARTS}", parts.len())));
    }
    let mut grammars = Vec::with_capacity(parts.len());
    for part in parts {
        let mut grammar = match (part.lark, part.regex, part.json_schema) {
            (Some(lark), None, None) => {
                check_lark(&lark)?;
                GrammarWithLexer::from_lark(lark)
            }
            (None, Some(regex), None) => GrammarWithLexer::from_regex(&whole(&regex)?),
            (None, None, Some(schema)) => GrammarWithLexer::from_json_schema(schema),
            _ => {
                return Err(bad_input(format!(
                    "the grammar's part '{}' needs one of lark, regex and json_schema",
                    part.name
                )))
            }
        };
        grammar.name = Some(part.name);
        grammars.push(grammar);
    }
    Ok(TopLevelGrammar { grammars, max_tokens: None })
}

/// A regex that has to match a whole text: anchors at its ends say nothing more.
fn whole(regex: &str) -> Result<String, Failure> {
    regex_syntax::Parser::new().parse(regex).map_err(|e| {
        let what = e.to_string();
        let what = what.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        bad_input(format!("the regex cannot be used: {what}"))
    })?;
    let inner = regex.strip_prefix('^').unwrap_or(regex);
    let dollar = inner.strip_suffix('$');
    let slashes = dollar.map_or(0, |i| i.len() - i.trim_end_matches('\\').len());
    let inner = dollar.filter(|_| slashes % 2 == 0).unwrap_or(inner);
    if inner.is_empty() {
        return Err(bad_input("the regex matches the empty text alone".into()));
    }
    Ok(if inner.len() == regex.len() { regex.to_owned() } else { format!("(?:{inner})") })
}

/// Refuses what would recurse too deeply. Strings and regexes are skipped.
fn check_lark(lark: &str) -> Result<(), Failure> {
    let (mut depth, mut rules, mut line) = (0usize, 0usize, 1usize);
    let mut quote: Option<char> = None;
    let mut escaped = false;
    for c in lark.chars() {
        line += usize::from(c == '\n');
        if let Some(q) = quote {
            let ends = (c == q && !escaped) || c == '\n';
            escaped = c == '\\' && !escaped;
            if ends {
                quote = None;
            }
            continue;
        }
        match c {
            '"' | '/' => (quote, escaped) = (Some(c), false),
            ':' => rules += 1,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_LARK_DEPTH {
            return Err(bad_input(format!(
                "line {line} of the lark grammar nests more than {MAX_LARK_DEPTH} levels"
            )));
        }
    }
    if rules > MAX_LARK_RULES {
        return Err(bad_input(format!(
            "the lark grammar has {rules} rules, at most {MAX_LARK_RULES} are allowed"
        )));
    }
    Ok(())
}

/// Where one answer stands in its grammar. Not shared between threads; a copy is independent.
pub struct GrammarMatcher {
    matcher: Matcher,
    env: TokEnv,
    end_tokens: Arc<Vec<u32>>,
    pub bytes: usize, // about how much memory the compiled grammar takes
    unread: usize,    // tokens from the end token on, or from the first that the grammar does not allow
    ended: bool,      // of those: the first was an end token where the text is whole
    error: Option<String>,
}

impl GrammarMatcher {
    pub fn copy(&self) -> GrammarMatcher {
        GrammarMatcher {
            matcher: self.matcher.deep_clone(),
            env: self.env.clone(),
            end_tokens: self.end_tokens.clone(),
            bytes: self.bytes,
            unread: self.unread,
            ended: self.ended,
            error: self.error.clone(),
        }
    }

    /// One token that was sampled. False if the grammar did not allow it; then only an end may follow.
    pub fn advance(&mut self, token: u32) -> Result<bool, Failure> {
        if self.unread > 0 {
            self.unread += 1;
            return Ok(false);
        }
        if self.end_tokens.contains(&token) {
            self.ended = self.accepting()?;
            self.unread = 1;
            return Ok(self.ended);
        }
        let trie = self.env.tok_trie();
        if token as usize >= trie.vocab_size() || trie.token_len(token) == 0 {
            self.unread = 1;
            return Ok(false);
        }
        let taken = self.matcher.try_consume_tokens(&[token]).map_err(|e| refused(&e.to_string()));
        self.unread = usize::from(!matches!(taken, Ok(1)));
        self.keep(taken).map(|count| count == 1)
    }

    fn keep<T>(&mut self, result: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(failure) = &result {
            self.error.get_or_insert_with(|| failure.message.clone());
        }
        result
    }

    /// Sets bit i where token i may come next; words beyond the vocabulary become 0. No bit is set when nothing may
    /// come, or the grammar failed: then allow_end(), for a sampler never sees an empty mask.
    pub fn mask(&mut self, bits: &mut [u32]) -> Result<(), Failure> {
        bits.fill(0);
        let outcome = self.fill(bits);
        self.keep(outcome)
    }

    pub fn allow_end(&self, bits: &mut [u32]) {
        for &t in self.end_tokens.iter() {
            if let Some(word) = bits.get_mut(t as usize / 32) {
                *word |= 1 << (t % 32);
            }
        }
    }

    fn fill(&mut self, bits: &mut [u32]) -> Result<(), Failure> {
        if let Some(error) = &self.error {
            return Err(bad_input(error.clone()));
        }
        if self.unread > 0 || self.matcher.is_stopped() {
            return Ok(());
        }
        let mask = self.matcher.compute_mask().map_err(|e| refused(&e.to_string()))?;
        let words = mask.as_slice();
        let count = words.len().min(bits.len());
        bits[..count].copy_from_slice(&words[..count]);
        let size = self.env.tok_trie().vocab_size();
        for (i, word) in bits.iter_mut().enumerate().skip(size / 32).take(1) {
            *word &= ((1u64 << (size - i * 32)) - 1) as u32;
        }
        for &t in self.end_tokens.iter() {
            if let Some(word) = bits.get_mut(t as usize / 32) {
                *word &= !(1 << (t % 32));
            }
        }
        if self.accepting()? {
            self.allow_end(bits);
        }
        Ok(())
    }

    /// Forgets the last tokens that were advanced over.
    pub fn rollback(&mut self, tokens: usize) -> Result<(), Failure> {
        let unread = tokens.min(self.unread);
        self.unread -= unread;
        self.ended &= self.unread > 0;
        if tokens > unread {
            let undone = self.matcher.rollback(tokens - unread).map_err(|e| refused(&e.to_string()));
            self.matcher.invalidate_bias_cache(); // it knows rows by number alone
            self.keep(undone)?;
        }
        Ok(())
    }

    /// Whether the text so far is a whole one.
    pub fn accepting(&mut self) -> Result<bool, Failure> {
        if self.error.is_some() || self.unread > 0 {
            return Ok(self.ended);
        }
        if self.matcher.is_stopped() {
            return Ok(self.matcher.stop_reason().is_ok());
        }
        let accepting = self.matcher.is_accepting().map_err(|e| refused(&e.to_string()));
        self.keep(accepting)
    }
}
