//! Masks where free text may come. The crate's slicer passes over lexemes that end at their first match, such as text
//! up to a tag, and then walks the whole vocabulary. Here one look at the lexer tells whether every text without
//! '<' and '>' stays inside the lexeme; then all tokens of such text are allowed at once, and only the few others are
//! walked.

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokEnv, TokTrie};
use std::sync::Arc;

/// More places than free text has: it, and the beginnings of characters, after each beginning of a tag.
const MAX_PLACES: usize = 48;

pub struct FreeText {
    others: Arc<dyn BiasComputer>, // where text is not free
    free: SimpleVob,               // tokens of whole characters without '<' and '>'
    rest: TokTrie,                 // the other ones
}

/// What the next byte of a UTF-8 text may be: how many more of the character it begins or goes on with, and its range.
#[derive(Clone, Copy, PartialEq)]
struct Next {
    more: u8,
    from: u8,
    to: u8,
}

const BOUNDARY: Next = Next { more: 0, from: 0, to: 0xFF };

/// After `byte`; none if it may not come (Unicode 16, table 3-7).
fn after(next: Next, byte: u8) -> Option<Next> {
    let go_on = |more, from, to| Some(Next { more, from, to });
    if next.more > 0 {
        return match (byte >= next.from && byte <= next.to, next.more) {
            (false, _) => None,
            (true, 1) => Some(BOUNDARY),
            (true, more) => go_on(more - 1, 0x80, 0xBF),
        };
    }
    match byte {
        b'<' | b'>' => None,
        0..=0x7F => Some(BOUNDARY),
        0xC2..=0xDF => go_on(1, 0x80, 0xBF),
        0xE0 => go_on(2, 0xA0, 0xBF),
        0xED => go_on(2, 0x80, 0x9F),
        0xE1..=0xEF => go_on(2, 0x80, 0xBF),
        0xF0 => go_on(3, 0x90, 0xBF),
        0xF1..=0xF3 => go_on(3, 0x80, 0xBF),
        0xF4 => go_on(3, 0x80, 0x8F),
        _ => None,
    }
}

impl FreeText {
    pub fn new(env: &TokEnv, others: Arc<dyn BiasComputer>) -> FreeText {
        let trie = env.tok_trie();
        let (mut free, mut rest) = (trie.alloc_token_set(), trie.alloc_token_set());
        for id in 0..trie.vocab_size() as u32 {
            let word = trie.token(id);
            let end = word.iter().try_fold(BOUNDARY, |next, byte| after(next, *byte));
            if word.is_empty() {
                continue;
            }
            if end == Some(BOUNDARY) {
                free.allow_token(id);
            } else {
                rest.allow_token(id);
            }
        }
        FreeText { others, free, rest: trie.filter(&rest) }
    }

    /// Whether every text without '<' and '>' goes on with the lexeme that is under way.
    fn may_come(rec: &mut ParserRecognizer<'_>) -> bool {
        rec.trie_started("free text");
        let mut places = Vec::with_capacity(MAX_PLACES);
        let free = visit(rec, BOUNDARY, &mut places);
        rec.trie_finished();
        free
    }
}

/// Tries every text from here on, as far as it leads to new places. A lexeme that ends makes a row of the parser.
fn visit(rec: &mut ParserRecognizer<'_>, next: Next, places: &mut Vec<(StateID, Next)>) -> bool {
    let place = (rec.lexer_state(), next);
    if places.contains(&place) {
        return true;
    }
    if places.len() == MAX_PLACES {
        return false;
    }
    places.push(place);
    for byte in 0..=0xFF {
        let Some(then) = after(next, byte) else { continue };
        let rows = rows(rec);
        if !rec.try_push_byte(byte) {
            return false;
        }
        let free = self::rows(rec) == rows && visit(rec, then, places);
        rec.pop_bytes(1);
        if !free {
            return false;
        }
    }
    true
}

fn rows(rec: &mut ParserRecognizer<'_>) -> usize {
    let stats = rec.stats_mut();
    stats.rows + stats.cached_rows
}

impl BiasComputer for FreeText {
    fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        if !start.is_empty() || !FreeText::may_come(rec) {
            return self.others.compute_bias(rec, start);
        }
        let mut set = self.free.clone();
        self.rest.add_bias(rec, &mut set, &[]);
        set
    }

    fn trie(&self) -> &TokTrie {
        self.others.trie()
    }
}
