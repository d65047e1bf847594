//! What schema.rs asks about schemas, patterns and references.

use crate::grammar::refused;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::derivre::RegexBuilder;
use llguidance::regex_to_lark;
use serde_json::{json, Value};
use std::time::Instant;

const MAX_PATTERN_BYTES: usize = 4_096;

pub fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

pub fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() > 60 {
        text.chars().take(57).chain("...".chars()).collect()
    } else {
        text
    }
}

/// Whether an object has both declared and other properties.
pub fn has_open_objects(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => {
            let declared = map.contains_key("properties") || map.contains_key("required");
            let open = map.get("additionalProperties") != Some(&Value::Bool(false));
            (declared && open) || map.values().any(has_open_objects)
        }
        Value::Array(items) => items.iter().any(has_open_objects),
        _ => false,
    }
}

/// Whether some schema of the document is merged with another one, where narrowing one alone would be wrong.
pub fn merges(value: &Value) -> bool {
    match value {
        Value::Object(map) => {
            let rules =
                map.keys().any(|k| matches!(k.as_str(), "properties" | "required" | "additionalProperties"));
            let branches = map.contains_key("$ref") || map.contains_key("anyOf") || map.contains_key("oneOf");
            map.contains_key("allOf") || (rules && branches) || map.values().any(merges)
        }
        Value::Array(items) => items.iter().any(merges),
        _ => false,
    }
}

pub fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!(
            "the pattern has {} bytes, at most {MAX_PATTERN_BYTES} can be enforced",
            pattern.len()
        ));
    }
    let checked = RegexBuilder::new().mk_regex_for_serach(&regex_to_lark(pattern, "dw"));
    checked.map(|_| ()).map_err(|e| {
        let what = e.to_string();
        let what = what.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        format!("the pattern {} cannot be enforced: {what}", short(&json!(pattern)))
    })
}

/// A URI's fragment as the text it stands for.
pub fn percent_decoded(fragment: &str) -> String {
    let bytes = fragment.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let hex = fragment.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let byte = hex.and_then(|h| u8::from_str_radix(h, 16).ok());
        out.push(byte.unwrap_or(bytes[at]));
        at += if byte.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Calls `f` with the place and the target of each reference. Values of enum and const are no schemas.
pub fn find_refs(value: &Value, at: &str, f: &mut impl FnMut(&str, &str)) {
    match value {
        Value::Object(map) => {
            for (key, member) in map {
                match (key.as_str(), member) {
                    ("$ref", Value::String(target)) => f(at, target),
                    ("enum" | "const", _) => {}
                    _ => find_refs(member, &format!("{at}/{}", escape(key)), f),
                }
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                find_refs(item, &format!("{at}/{i}"), f);
            }
        }
        _ => {}
    }
}

/// Whether a schema becomes a grammar, without a vocabulary.
pub fn compiles(schema: &Value, strict: bool) -> Result<(), String> {
    let mut schema = schema.clone();
    if schema.is_object() {
        crate::schema::add_options(&mut schema, strict);
    }
    let init = GrammarInit::Serialized(TopLevelGrammar::from_json_schema(schema));
    let limits = ParserLimits { verbose_errors: false, ..ParserLimits::default() };
    init.to_internal(None, limits).map(|_| ()).map_err(|e| {
        let message = refused(&format!("{e:#}")).message;
        let message = message.trim_start_matches("the grammar cannot be used: ");
        if message.starts_with("oneOf constraints") {
            return "branches that may hold at once cannot be told apart".to_owned();
        }
        message.to_owned()
    })
}

/// A schema of the document as one of its own.
fn alone(root: &Value, schema: &Value) -> Value {
    let mut alone = schema.clone();
    for defs in ["$defs", "definitions"] {
        if let (Some(value), Some(map)) = (root.get(defs), alone.as_object_mut()) {
            map.entry(defs).or_insert_with(|| value.clone());
        }
    }
    alone
}

/// The one keyword of a schema that fails without which it does not.
pub fn blamed(root: &Value, at: &str, strict: bool, deadline: Instant) -> Option<String> {
    let schema = alone(root, root.pointer(at)?);
    let keys = schema.as_object()?.keys().filter(|key| !matches!(key.as_str(), "$defs" | "definitions"));
    let fixes = |key: &&String| {
        let mut without = schema.clone();
        without.as_object_mut().expect("checked above").shift_remove(*key);
        Instant::now() < deadline && compiles(&without, strict).is_ok()
    };
    keys.filter(|key| key.as_str() != "type").find(fixes).cloned()
}

/// The innermost schema that fails alone, and why.
pub fn culprit(root: &Value, at: &str, why: String, strict: bool, deadline: Instant) -> (String, String) {
    let Some(Value::Object(map)) = root.pointer(at) else {
        return (at.to_owned(), why);
    };
    for (key, member) in map {
        let children: Vec<(String, &Value)> = match key.as_str() {
            "items" | "additionalProperties" | "additionalItems" if !member.is_array() => {
                vec![(format!("{at}/{key}"), member)]
            }
            "anyOf" | "oneOf" | "allOf" | "prefixItems" | "items" => {
                let items = member.as_array().into_iter().flatten().enumerate();
                items.map(|(i, item)| (format!("{at}/{key}/{i}"), item)).collect()
            }
            "properties" | "patternProperties" | "$defs" | "definitions" => {
                let members = member.as_object().into_iter().flatten();
                members.map(|(name, item)| (format!("{at}/{key}/{}", escape(name)), item)).collect()
            }
            _ => continue,
        };
        for (place, child) in children {
            if Instant::now() > deadline || !child.is_object() {
                continue;
            }
            let alone = alone(root, child);
            if let Err(why) = compiles(&alone, strict) {
                return culprit(root, &place, why, strict, deadline);
            }
        }
    }
    (at.to_owned(), why)
}

/// A regex of all texts that hold `pattern`: anchors at the ends of its branches are honoured, others give none.
pub fn whole_text(pattern: &str) -> Option<String> {
    use regex_syntax::ast::{parse::Parser, AssertionKind, Ast};
    let source = regex_to_lark(pattern, "dw");
    let ast = Parser::new().parse(&source).ok()?;
    let branches = match &ast {
        Ast::Alternation(branches) => branches.asts.iter().collect(),
        _ => vec![&ast],
    };
    let anchored = |part: Option<&Ast>, kinds: [AssertionKind; 2]| matches!(part, Some(Ast::Assertion(a)) if kinds.contains(&a.kind));
    let texts = branches.into_iter().map(|branch| {
        let parts = match branch {
            Ast::Concat(concat) => concat.asts.iter().collect(),
            _ => vec![branch],
        };
        let first = anchored(parts.first().copied(), [AssertionKind::StartLine, AssertionKind::StartText]);
        let last = anchored(parts.last().copied(), [AssertionKind::EndLine, AssertionKind::EndText]);
        let begin = if first { parts[0].span().end.offset } else { branch.span().start.offset };
        let end = if last { parts[parts.len() - 1].span().start.offset } else { branch.span().end.offset };
        let any = |anchored| if anchored { "" } else { "(?s:.*)" };
        format!("{}(?:{}){}", any(first), &source[begin..end.max(begin)], any(last))
    });
    let text = texts.collect::<Vec<_>>().join("|");
    RegexBuilder::new().mk_regex(&text).ok().map(|_| text)
}
