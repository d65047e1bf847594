//! The pre-tokenisers that the supported models name, as hand-written matchers: one pass, no backtracking, so a
//! megabyte of one character costs as much as a megabyte of prose. (The regex engines of the `tokenizers` crate
//! give up silently after a million steps on such text.)
//!
//! `qwen35`, `qwen2` and `llama-bpe` are one pattern with two parameters, alternatives in this order
//! (X is \p{L}, for qwen35 [\p{L}\p{M}]; d is 1, for llama-bpe 3):
//!
//!     (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?X+ | \p{N}{1,d} | ?[^\s X \p{N}]+[\r\n]*
//!     | \s*[\r\n]+ | \s+(?!\S) | \s+
//!
//! `smollm` first isolates every \p{N}, then splits what is between by GPT-2's pattern:
//!
//!     's|'t|'re|'ve|'m|'ll|'d | ?\p{L}+ | ?\p{N}+ | ?[^\s\p{L}\p{N}]+ | \s+(?!\S) | \s+

use crate::classes::{classes, Classes, LETTER, MARK, NUMBER, SPACE};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Splitter {
    Qwen35,
    Qwen2,
    LlamaBpe,
    Smollm,
}

pub const PATTERN_QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub const PATTERN_QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub const PATTERN_LLAMA_BPE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Splitter {
    /// The splitter that a GGUF names in `tokenizer.ggml.pre`.
    pub fn from_name(name: &str) -> Option<Splitter> {
        match name {
            "qwen35" => Some(Splitter::Qwen35),
            "qwen2" => Some(Splitter::Qwen2),
            "llama-bpe" => Some(Splitter::LlamaBpe),
            "smollm" => Some(Splitter::Smollm),
            _ => None,
        }
    }

    /// The splitter equal to a regex of a tokenizer.json.
    pub fn from_pattern(pattern: &str) -> Option<Splitter> {
        match pattern {
            PATTERN_QWEN35 => Some(Splitter::Qwen35),
            PATTERN_QWEN2 => Some(Splitter::Qwen2),
            PATTERN_LLAMA_BPE => Some(Splitter::LlamaBpe),
            _ => None,
        }
    }

    /// Calls `emit` with each piece of `text`, in order; the pieces cover it.
    pub fn split<'t, E>(
        self,
        text: &'t str,
        emit: &mut dyn FnMut(&'t str) -> Result<(), E>,
    ) -> Result<(), E> {
        let table = classes();
        if self == Splitter::Smollm {
            return split_smollm(table, text, emit);
        }
        let mut rest = text;
        while !rest.is_empty() {
            let length = self.piece(table, rest);
            emit(&rest[..length])?;
            rest = &rest[length..];
        }
        Ok(())
    }

    /// Bytes of the piece that `s` (not empty) begins with.
    fn piece(self, table: &Classes, s: &str) -> usize {
        let word = if self == Splitter::Qwen35 { LETTER | MARK } else { LETTER };
        let digits = if self == Splitter::LlamaBpe { 3 } else { 1 };
        let c = s.chars().next().expect("not empty");
        let class = table.of(c);
        if let Some(n) = contraction(s, true) {
            return n;
        }
        if class & word != 0 {
            return run(table, s, word);
        }
        if c != '\r' && c != '\n' && class & (LETTER | NUMBER) == 0 {
            let letters = run(table, &s[c.len_utf8()..], word);
            if letters > 0 {
                return c.len_utf8() + letters;
            }
        }
        if class & NUMBER != 0 {
            return s
                .chars()
                .take(digits)
                .take_while(|&c| table.of(c) & NUMBER != 0)
                .map(char::len_utf8)
                .sum();
        }
        let space = usize::from(c == ' ');
        let symbols = run_without(table, &s[space..], SPACE | word | NUMBER);
        if symbols > 0 {
            let tail = &s[space + symbols..];
            return space + symbols + (tail.len() - tail.trim_start_matches(['\r', '\n']).len());
        }
        let white = run(table, s, SPACE);
        match s[..white].rfind(['\r', '\n']) {
            Some(last) => last + 1,
            None => without_last(s, white),
        }
    }
}

/// Bytes of the maximal prefix of characters that have one of the bits.
fn run(table: &Classes, s: &str, bits: u8) -> usize {
    s.char_indices().find(|&(_, c)| table.of(c) & bits == 0).map_or(s.len(), |(i, _)| i)
}

/// Bytes of the maximal prefix of characters that have none of the bits.
fn run_without(table: &Classes, s: &str, bits: u8) -> usize {
    s.char_indices().find(|&(_, c)| table.of(c) & bits != 0).map_or(s.len(), |(i, _)| i)
}

/// `\s+(?!\S)|\s+` on a white-space run of `white` bytes: before more text its last character is left for the
/// next piece, unless it is the only one.
fn without_last(s: &str, white: usize) -> usize {
    if white == s.len() {
        return white;
    }
    let last = s[..white].chars().next_back().map_or(0, char::len_utf8);
    if last == white {
        white
    } else {
        white - last
    }
}

/// Bytes of an English contraction at the start. Ignoring case follows Unicode's simple folding, under which
/// U+017F (long s) is an s.
fn contraction(s: &str, ignore_case: bool) -> Option<usize> {
    let mut chars = s.strip_prefix('\'')?.chars();
    let fold = |c: char| match c {
        'A'..='Z' if ignore_case => c.to_ascii_lowercase(),
        '\u{17f}' if ignore_case => 's',
        _ => c,
    };
    let first = chars.next()?;
    match fold(first) {
        's' | 't' | 'm' | 'd' => Some(1 + first.len_utf8()),
        f @ ('r' | 'v' | 'l') => {
            let expected = if f == 'l' { 'l' } else { 'e' };
            (fold(chars.next()?) == expected).then_some(3)
        }
        _ => None,
    }
}

fn split_smollm<'t, E>(
    table: &Classes,
    text: &'t str,
    emit: &mut dyn FnMut(&'t str) -> Result<(), E>,
) -> Result<(), E> {
    let mut rest = text;
    while !rest.is_empty() {
        let c = rest.chars().next().expect("not empty");
        if table.of(c) & NUMBER != 0 {
            emit(&rest[..c.len_utf8()])?;
            rest = &rest[c.len_utf8()..];
            continue;
        }
        // The second pattern sees only this part: its end counts as the end of the text.
        let mut part = &rest[..run_without(table, rest, NUMBER)];
        rest = &rest[part.len()..];
        while !part.is_empty() {
            let length = piece_gpt2(table, part);
            emit(&part[..length])?;
            part = &part[length..];
        }
    }
    Ok(())
}

/// Bytes of the piece that `s` (not empty, without numbers) begins with, by GPT-2's pattern.
fn piece_gpt2(table: &Classes, s: &str) -> usize {
    if let Some(n) = contraction(s, false) {
        return n;
    }
    let space = usize::from(s.starts_with(' '));
    let letters = run(table, &s[space..], LETTER);
    if letters > 0 {
        return space + letters;
    }
    let symbols = run_without(table, &s[space..], SPACE | LETTER | NUMBER);
    if symbols > 0 {
        return space + symbols;
    }
    without_last(s, run(table, s, SPACE))
}
