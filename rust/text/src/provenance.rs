//! Which bytes of a rendered prompt came from the caller. Only template text may produce control tokens, so the
//! encoder must know, while the rendered string stays exactly what Jinja2 prints.
//!
//! Method: render once as asked. If the caller's strings hold a character that a control token begins or ends with,
//! render again with these characters replaced by marks (private code points, one for one, so lengths and
//! comparisons behave the same). The second render with its marks undone must equal the first; then a marked place
//! is the caller's. Text that the template itself looks for (`</think>`, `<tool_response>`) stays unmarked unless it
//! could belong to a control token. If the renders differ (the template looks at the characters in another way), a
//! weaker marking is tried, whole control tokens and their ends only, and accepted if the control tokens that
//! remain are those of the fully marked render, one for one. Otherwise the chat is refused.

use crate::added::{AddedToken, Control, Matcher, Part};
use crate::python::with_marks;
use crate::template::Rendered;
use crate::{bad_input, Failure};
use serde_json::Value as Json;
use std::collections::HashSet;
use std::ops::Range;

/// The two private planes; marks lie in one that the caller's text does not use.
const PLANES: [u32; 2] = [0xf_0000, 0x10_0000];

pub struct Guard {
    control: Vec<String>,
    matcher: Matcher,
    edges: HashSet<char>,  // characters that control tokens begin or end with
    literals: Vec<String>, // strings of the template with such characters that no control token can share
    printable: Vec<bool>,  // per control token: the template can print it out of its own text
    literal_starts: HashSet<char>,
}

enum Marking {
    Edges,
    WholeTokens,
}

impl Guard {
    /// `constants` are texts that the template gets from the model, not the caller: bos_token and the like.
    pub fn new(source: &str, mut control: Vec<String>, constants: Vec<String>) -> Guard {
        control.retain(|t| !t.is_empty());
        control.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        control.dedup();
        let can_mark = |c: &char| !c.is_alphanumeric() && (*c as u32) < 0xfffe;
        let edges: HashSet<char> = control
            .iter()
            .flat_map(|t| [t.chars().next(), t.chars().next_back()])
            .flatten()
            .filter(can_mark)
            .collect();
        let literals: Vec<String> = string_literals(source)
            .into_iter()
            .filter(|l| {
                l.chars().any(|c| edges.contains(&c)) && !control.iter().any(|t| may_share(l, t, &edges))
            })
            .collect();
        let tokens = control.iter().enumerate().map(|(i, t)| AddedToken {
            id: i as u32,
            content: t.clone(),
            control: true,
            ..Default::default()
        });
        Guard {
            matcher: Matcher::new(tokens.collect()),
            printable: control.iter().map(|t| source.contains(t.as_str()) || constants.contains(t)).collect(),
            literal_starts: literals.iter().filter_map(|l| l.chars().next()).collect(),
            control,
            edges,
            literals,
        }
    }

    /// Renders `caller` and finds what must not become control tokens.
    pub fn render(
        &self,
        caller: &Json,
        render_once: &dyn Fn(&Json) -> Result<String, Failure>,
    ) -> Result<Rendered, Failure> {
        let text = render_once(caller)?;
        let mut guarded = Vec::new();
        let mut strings = Vec::new();
        collect_strings(caller, &mut strings);
        if strings.iter().any(|s| {
            s.contains(|c| self.edges.contains(&c)) || self.control.iter().any(|t| s.contains(t.as_str()))
        }) {
            guarded = self.mark_and_compare(caller, &strings, &text, render_once)?;
        }
        self.guard_composed(&text, &strings, &mut guarded);
        Ok(Rendered { text, guarded })
    }

    fn mark_and_compare(
        &self,
        caller: &Json,
        strings: &[&str],
        text: &str,
        render_once: &dyn Fn(&Json) -> Result<String, Failure>,
    ) -> Result<Vec<Range<usize>>, Failure> {
        let in_plane = |s: &str, plane: u32| s.chars().any(|c| c as u32 & 0xff_0000 == plane);
        let plane =
            PLANES.into_iter().find(|&p| !in_plane(text, p) && !strings.iter().any(|s| in_plane(s, p)));
        let Some(plane) = plane else {
            return Err(bad_input("the messages use private characters of planes 15 and 16, which this chat template's control tokens need for marks".into()));
        };
        let pass = |marking: Marking| {
            let mut marked = caller.clone();
            for_each_string(&mut marked, &mut |s| *s = self.mark(s, plane, &marking));
            with_marks(plane, || render_once(&marked))
        };
        let full = pass(Marking::Edges);
        if let Ok(full) = &full {
            let (plain, ranges) = unmark(full, plane);
            if plain == text {
                return Ok(ranges);
            }
        }
        let refuse = || {
            bad_input("the messages hold text like a control token in a place that the chat template itself interprets, so the two cannot be told apart".to_owned())
        };
        let (plain, ranges) = unmark(&pass(Marking::WholeTokens).map_err(|_| refuse())?, plane);
        let full = full.map_err(|_| refuse())?;
        if plain != text || self.tokens(&full, &[]) != self.tokens(text, &ranges) {
            return Err(refuse());
        }
        Ok(ranges)
    }

    /// The control tokens of a text outside the guarded ranges.
    fn tokens(&self, text: &str, guarded: &[Range<usize>]) -> Vec<u32> {
        let parts = self.matcher.cut(text, Control::Outside(guarded));
        parts.into_iter().filter_map(|p| if let Part::Token(t) = p { Some(t) } else { None }).collect()
    }

    /// Guards control tokens that the template cannot have printed alone: it put one together around a caller's
    /// string. A known role in the middle is fine, templates do print `<|` + role + `|>`.
    fn guard_composed(&self, text: &str, strings: &[&str], guarded: &mut Vec<Range<usize>>) {
        const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];
        let allowed: Vec<bool> = (0..self.control.len())
            .map(|i| {
                let mut roles = ROLES.iter().filter(|r| strings.contains(r));
                self.printable[i] || roles.any(|r| self.control[i].contains(r))
            })
            .collect();
        if allowed.iter().all(|&a| a) {
            return;
        }
        let mut at = 0;
        for part in self.matcher.cut(text, Control::Outside(guarded.as_slice())) {
            match part {
                Part::Text(range) => at = range.end,
                Part::Token(t) => {
                    let end = at + self.control[t as usize].len();
                    if !allowed[t as usize] {
                        guarded.push(at..end);
                    }
                    at = end;
                }
            }
        }
        guarded.sort_by_key(|r| r.start);
    }

    fn mark(&self, s: &str, plane: u32, marking: &Marking) -> String {
        let shift = |c: char| match c as u32 {
            code @ 0..=0xfffd => char::from_u32(plane + code).unwrap_or(c),
            _ => c,
        };
        let mut whole = vec![false; s.len() + 1];
        for range in self.whole_tokens(s) {
            whole[range].fill(true);
        }
        let mut out = String::with_capacity(s.len() + 16);
        let mut at = 0;
        while let Some(c) = s[at..].chars().next() {
            if let (Marking::Edges, Some(literal)) = (marking, self.literal_at(&s[at..])) {
                if !whole[at] {
                    out.push_str(literal);
                    at += literal.len();
                    continue;
                }
            }
            let edge = matches!(marking, Marking::Edges) && self.edges.contains(&c);
            out.push(if whole[at] || edge { shift(c) } else { c });
            at += c.len_utf8();
        }
        out
    }

    fn literal_at(&self, s: &str) -> Option<&str> {
        if !s.starts_with(|c| self.literal_starts.contains(&c)) {
            return None;
        }
        self.literals.iter().filter(|l| s.starts_with(l.as_str())).max_by_key(|l| l.len()).map(String::as_str)
    }

    /// Control tokens in a caller's string, and what of one may begin at its end or end at its start.
    fn whole_tokens(&self, s: &str) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
        for token in &self.control {
            ranges.extend(s.match_indices(token.as_str()).map(|(i, m)| i..i + m.len()));
            for (cut, _) in token.char_indices().skip(1) {
                let (head, tail) = token.split_at(cut);
                if s.ends_with(head) {
                    ranges.push(s.len() - head.len()..s.len());
                }
                if s.starts_with(tail) {
                    ranges.push(0..tail.len());
                }
            }
        }
        ranges
    }
}

/// Whether text that holds `literal` could have its edge characters inside the control token.
fn may_share(literal: &str, token: &str, edges: &HashSet<char>) -> bool {
    literal.char_indices().filter(|(_, c)| edges.contains(c)).any(|(i, c)| {
        let (from, to) = (&literal[i..], &literal[..i + c.len_utf8()]);
        from.starts_with(token) || token.starts_with(from) || to.ends_with(token) || token.ends_with(to)
    })
}

/// The text without marks, and the byte ranges in it that were marked.
fn unmark(marked: &str, plane: u32) -> (String, Vec<Range<usize>>) {
    let mut text = String::with_capacity(marked.len());
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for c in marked.chars() {
        let start = text.len();
        if c as u32 & 0xff_0000 != plane {
            text.push(c);
            continue;
        }
        text.push(char::from_u32(c as u32 - plane).unwrap_or(c));
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = text.len(),
            _ => ranges.push(start..text.len()),
        }
    }
    (text, ranges)
}

fn collect_strings<'a>(value: &'a Json, out: &mut Vec<&'a str>) {
    match value {
        Json::String(s) => out.push(s),
        Json::Array(items) => items.iter().for_each(|v| collect_strings(v, out)),
        Json::Object(map) => map.iter().for_each(|(k, v)| {
            out.push(k);
            collect_strings(v, out);
        }),
        _ => {}
    }
}

fn for_each_string(value: &mut Json, f: &mut dyn FnMut(&mut String)) {
    match value {
        Json::String(s) => f(s),
        Json::Array(items) => items.iter_mut().for_each(|v| for_each_string(v, f)),
        Json::Object(map) => {
            for (mut key, mut item) in std::mem::take(map) {
                f(&mut key);
                for_each_string(&mut item, f);
                map.insert(key, item);
            }
        }
        _ => {}
    }
}

/// The string literals in the template's tags and expressions.
fn string_literals(source: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{{")).min() {
        let close = if rest[at..].starts_with("{%") { "%}" } else { "}}" };
        rest = &rest[at + 2..];
        while let Some(c) = rest.chars().next() {
            if rest.starts_with(close) {
                break;
            }
            rest = &rest[c.len_utf8()..];
            if c == '\'' || c == '"' {
                let (literal, after) = read_literal(rest, c);
                literals.push(literal);
                rest = after;
            }
        }
    }
    literals
}

/// A literal up to its closing quote, escapes resolved, and what follows.
fn read_literal(s: &str, quote: char) -> (String, &str) {
    let mut literal = String::new();
    let mut chars = s.char_indices();
    while let Some((i, c)) = chars.next() {
        if c == quote {
            return (literal, &s[i + 1..]);
        }
        if c != '\\' {
            literal.push(c);
            continue;
        }
        match chars.next().map(|(_, e)| e) {
            Some('n') => literal.push('\n'),
            Some('t') => literal.push('\t'),
            Some('r') => literal.push('\r'),
            Some(e) => literal.push(e),
            None => break,
        }
    }
    (literal, "")
}
