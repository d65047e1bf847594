//! Added tokens (control and user-defined) in a text: leftmost, then longest, as Hugging Face matches them, with
//! one more rule: a control token is only taken where every byte of it may produce one.

use crate::classes::{classes, LETTER, MARK, NUMBER, SPACE};
use std::ops::Range;

/// One added token and the flags of a tokenizer.json; a GGUF has none of them set.
#[derive(Clone, Default)]
pub struct AddedToken {
    pub id: u32,
    pub content: String,
    pub control: bool,
    pub single_word: bool,
    pub lstrip: bool,
    pub rstrip: bool,
}

#[derive(Default)]
struct Node {
    children: Vec<(u8, u32)>, // sorted by byte
    token: Option<u32>,       // index into `tokens`
}

/// A byte trie of the tokens' texts.
pub struct Matcher {
    tokens: Vec<AddedToken>,
    nodes: Vec<Node>,
    starts: [bool; 256],
}

/// Where control tokens may come from.
#[derive(Clone, Copy)]
pub enum Control<'a> {
    Everywhere,
    Nowhere,
    /// Not where they would touch one of these byte ranges (sorted, disjoint).
    Outside(&'a [Range<usize>]),
}

impl Control<'_> {
    fn allows(self, range: &Range<usize>) -> bool {
        match self {
            Control::Everywhere => true,
            Control::Nowhere => false,
            Control::Outside(ranges) => {
                let next = ranges.partition_point(|r| r.end <= range.start);
                ranges.get(next).is_none_or(|r| r.start >= range.end)
            }
        }
    }
}

/// A piece of the text: an added token, or text between them.
pub enum Part {
    Token(u32),
    Text(Range<usize>),
}

impl Matcher {
    pub fn new(tokens: Vec<AddedToken>) -> Matcher {
        let mut matcher = Matcher { tokens: Vec::new(), nodes: vec![Node::default()], starts: [false; 256] };
        for token in tokens {
            if token.content.is_empty() {
                continue;
            }
            let mut node = 0;
            for &byte in token.content.as_bytes() {
                node = matcher.child(node, byte);
            }
            matcher.starts[token.content.as_bytes()[0] as usize] = true;
            matcher.nodes[node].token = Some(matcher.tokens.len() as u32);
            matcher.tokens.push(token);
        }
        matcher
    }

    fn child(&mut self, node: usize, byte: u8) -> usize {
        match self.nodes[node].children.binary_search_by_key(&byte, |c| c.0) {
            Ok(i) => self.nodes[node].children[i].1 as usize,
            Err(i) => {
                let new = self.nodes.len();
                self.nodes.push(Node::default());
                self.nodes[node].children.insert(i, (byte, new as u32));
                new
            }
        }
    }

    /// The longest token at byte `at` that may be taken there.
    fn longest_at(&self, text: &str, at: usize, control: Control) -> Option<(&AddedToken, usize)> {
        let mut node = 0;
        let mut best = None;
        for (i, byte) in text.as_bytes()[at..].iter().enumerate() {
            match self.nodes[node].children.binary_search_by_key(byte, |c| c.0) {
                Ok(c) => node = self.nodes[node].children[c].1 as usize,
                Err(_) => break,
            }
            let Some(index) = self.nodes[node].token else { continue };
            let token = &self.tokens[index as usize];
            let end = at + i + 1;
            if token.control && !control.allows(&(at..end)) {
                continue;
            }
            if token.single_word && !is_single_word(text, at, end) {
                continue;
            }
            best = Some((token, end));
        }
        best
    }

    /// Cuts `text` into added tokens and what is between them.
    pub fn cut(&self, text: &str, control: Control) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut done = 0;
        let mut at = 0;
        while at < text.len() {
            if !self.starts[text.as_bytes()[at] as usize] {
                at += 1;
                continue;
            }
            let Some((token, end)) = self.longest_at(text, at, control) else {
                at += 1;
                continue;
            };
            let start = if token.lstrip { done + trimmed_end(&text[done..at]) } else { at };
            let stop = if token.rstrip { end + white_prefix(&text[end..]) } else { end };
            if done < start {
                parts.push(Part::Text(done..start));
            }
            parts.push(Part::Token(token.id));
            done = stop;
            at = stop;
        }
        if done < text.len() {
            parts.push(Part::Text(done..text.len()));
        }
        parts
    }
}

fn is_word(c: char) -> bool {
    c == '_' || classes().of(c) & (LETTER | MARK | NUMBER) != 0
}

fn is_single_word(text: &str, start: usize, end: usize) -> bool {
    !text[..start].chars().next_back().is_some_and(is_word)
        && !text[end..].chars().next().is_some_and(is_word)
}

fn trimmed_end(s: &str) -> usize {
    s.trim_end_matches(|c| classes().of(c) & SPACE != 0).len()
}

fn white_prefix(s: &str) -> usize {
    s.len() - s.trim_start_matches(|c| classes().of(c) & SPACE != 0).len()
}
