//! A client's JSON Schema, made one that the grammar compiler takes: what it cannot enforce is an error that names
//! the place (strict), or is left out with a notice. What is left out or made narrower is in docs/serving-grammar.md.

use crate::grammar::on_deep_stack;
use crate::schema_check::{
    blamed, check_pattern, compiles, culprit, escape, find_refs, has_open_objects, merges, percent_decoded,
    short, whole_text,
};
use crate::{bad_input, Failure};
use serde_json::{json, Map, Value};
use std::time::{Duration, Instant};

const MAX_NODES: usize = 10_000; // schemas in a document
const MAX_MERGED_NODES: usize = 500; // where allOf multiplies them
const MAX_INTEGER: f64 = 9_007_199_254_740_991.0; // the integers that every JSON reader keeps
const MAX_ITEMS: u64 = 10_000;
const MAX_LENGTH: u64 = 8_192; // of a string: each place in it is a state of the lexer
const MAX_RELAXED: usize = 64;
const MAX_EXPLAIN: Duration = Duration::from_secs(1); // for finding the places of what fails

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Formats of numbers and of texts that every text is.
const VOID_FORMATS: [&str; 8] =
    ["int32", "int64", "uint32", "uint64", "float", "double", "password", "unknown"];
/// Keywords that say something that no grammar of ours enforces.
const UNSUPPORTED: [&str; 18] = [
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "uniqueItems",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
    "$dynamicAnchor",
    "$recursiveAnchor",
];
/// White space between the parts of a JSON text: enough for indentation, never without end.
const WHITE_SPACE: &str = r"[ \t\r\n]{1,40}";

/// Beside a pattern: the regex of the texts that hold it, for where a string is not written as JSON.
const WHOLE_TEXT: &str = "x-text";

pub struct Notice {
    pointer: String,
    text: String,
}

pub struct Prepared {
    schema: Value,
    notices: Vec<Notice>,
}

impl Prepared {
    pub fn to_json(&self) -> String {
        let notices = self.notices.iter().map(|n| json!({"pointer": n.pointer, "text": n.text}));
        json!({"schema": self.schema, "notices": notices.collect::<Vec<_>>()}).to_string()
    }
}

/// Errors: bad_input with a JSON pointer and what is wrong there.
pub fn prepare(text: &str, strict: bool) -> Result<Prepared, Failure> {
    let schema: Value =
        serde_json::from_str(text).map_err(|e| bad_input(format!("the schema is no JSON: {e}")))?;
    on_deep_stack(|| {
        let mut walk = Walk::new(&schema, strict)?;
        let mut out = walk.schema(&schema, "", walk.closing)?;
        if !out.is_object() {
            out = if out == Value::Bool(false) { json!({"enum": []}) } else { json!({}) };
        }
        walk.check_refs(&mut out)?;
        walk.settle(&mut out)?;
        add_options(&mut out, strict);
        Ok(Prepared { schema: out, notices: walk.notices })
    })?
}

/// How the grammar writes JSON. Escapes of printable characters could spell a declared key once more.
pub fn add_options(schema: &mut Value, strict: bool) {
    let options = json!({
        "whitespace_pattern": WHITE_SPACE,
        "coerce_one_of": !strict,
        "json_allowed_escapes": if has_open_objects(schema) { "nrbtf\\\"" } else { "nrbtf\\\"u" },
    });
    schema.as_object_mut().expect("made one above").insert("x-guidance".into(), options);
}

struct Walk<'a> {
    root: &'a Value,
    strict: bool,
    closing: bool, // an object that lists its properties and does not mention others has no others
    nodes: usize,
    max_nodes: usize,
    notices: Vec<Notice>,
}

fn shown(pointer: &str) -> &str {
    if pointer.is_empty() {
        "the root"
    } else {
        pointer
    }
}

impl<'a> Walk<'a> {
    fn new(root: &'a Value, strict: bool) -> Result<Walk<'a>, Failure> {
        let merged = merges(root);
        let max_nodes = if merged { MAX_MERGED_NODES } else { MAX_NODES };
        Ok(Walk { root, strict, closing: !merged, nodes: 0, max_nodes, notices: Vec::new() })
    }

    fn bad<T>(&self, pointer: &str, what: String) -> Result<T, Failure> {
        Err(bad_input(format!("the schema at {}: {what}", shown(pointer))))
    }

    /// Something that cannot be enforced: an error, or a notice.
    fn relax(&mut self, pointer: &str, what: String) -> Result<(), Failure> {
        if self.strict {
            return self.bad(pointer, what);
        }
        if self.notices.len() < MAX_RELAXED {
            self.notices.push(Notice { pointer: pointer.to_owned(), text: what });
        }
        Ok(())
    }

    fn schema(&mut self, value: &Value, at: &str, closing: bool) -> Result<Value, Failure> {
        self.nodes += 1;
        if self.nodes > self.max_nodes {
            return self.bad(at, format!("it has more than {} schemas", self.max_nodes));
        }
        match value {
            Value::Bool(_) => Ok(value.clone()),
            Value::Object(map) => {
                let mut out = Map::new();
                for (key, member) in map {
                    self.keyword(key, member, map, &format!("{at}/{}", escape(key)), closing, &mut out)?;
                }
                if closing {
                    infer_type(&mut out);
                }
                if closing
                    && out.contains_key("properties")
                    && !out.contains_key("additionalProperties")
                    && !out.contains_key("patternProperties")
                {
                    self.close(&mut out);
                }
                Ok(if map.get("nullable") == Some(&Value::Bool(true)) {
                    nullable(out)
                } else {
                    Value::Object(out)
                })
            }
            _ => self.bad(at, format!("a schema is an object or a boolean, found {}", short(value))),
        }
    }

    /// An object that lists its properties gets no others: what it allows is still what the schema allows.
    fn close(&self, out: &mut Map<String, Value>) {
        let listed = |name: &Value| {
            name.as_str().is_some_and(|n| out["properties"].as_object().is_some_and(|p| p.contains_key(n)))
        };
        let all = out.get("required").and_then(Value::as_array).is_none_or(|names| names.iter().all(listed));
        if all && !out.contains_key("minProperties") {
            out.insert("additionalProperties".into(), Value::Bool(false));
        }
    }

    fn keyword(
        &mut self,
        key: &str,
        value: &Value,
        siblings: &Map<String, Value>,
        at: &str,
        closing: bool,
        out: &mut Map<String, Value>,
    ) -> Result<(), Failure> {
        let made = match key {
            "type" => self.types(value, at)?,
            "enum" => match value.as_array() {
                Some(values) if !values.is_empty() => Some(value.clone()),
                _ => return self.bad(at, "expected an array that is not empty".into()),
            },
            "const" => Some(value.clone()),
            "$ref" => Some(value.clone()), // check_refs() looks at it
            "anyOf" | "oneOf" | "allOf" | "prefixItems" => Some(self.list(value, at, closing)?),
            "items" if value.is_array() => Some(self.list(value, at, closing)?),
            "items" | "additionalProperties" | "additionalItems" => Some(self.schema(value, at, closing)?),
            "properties" | "$defs" | "definitions" => Some(self.map(value, at, closing)?),
            "patternProperties" => self.pattern_properties(value, at, closing)?,
            "required" => match value.as_array() {
                Some(names) if names.iter().all(Value::is_string) => Some(value.clone()),
                // Draft 3 and others write it beside a property; it says nothing about that property's value.
                _ if value.is_boolean() => None,
                _ => return self.bad(at, format!("expected an array of strings, found {}", short(value))),
            },
            "minItems" | "maxItems" | "minLength" | "maxLength" | "minProperties" | "maxProperties" => {
                self.count(key, value, at)?
            }
            "pattern" => self.pattern(value, at)?,
            "format" => self.format(value, siblings, at)?,
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => self.bound(key, value, at)?,
            "multipleOf" => self.multiple_of(value, at)?,
            "uniqueItems" | "unevaluatedProperties" | "unevaluatedItems" if says_nothing(key, value) => None,
            "propertyNames" if names_any(value) => None,
            _ if UNSUPPORTED.contains(&key) => {
                self.relax(at, format!("the keyword '{key}' cannot be enforced"))?;
                None
            }
            _ => None, // an annotation
        };
        if let Some(made) = made {
            if let ("pattern", Some(text)) = (key, made.as_str().and_then(whole_text)) {
                out.insert(WHOLE_TEXT.into(), text.into());
            }
            out.insert(key.into(), made);
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, at: &str, closing: bool) -> Result<Value, Failure> {
        let Some(items) = value.as_array().filter(|items| !items.is_empty()) else {
            return self.bad(at, format!("expected an array of schemas, found {}", short(value)));
        };
        let items =
            items.iter().enumerate().map(|(i, item)| self.schema(item, &format!("{at}/{i}"), closing));
        Ok(Value::Array(items.collect::<Result<_, _>>()?))
    }

    fn map(&mut self, value: &Value, at: &str, closing: bool) -> Result<Value, Failure> {
        let Some(map) = value.as_object() else {
            return self.bad(at, format!("expected an object of schemas, found {}", short(value)));
        };
        let member = |(name, member): (&String, &Value)| {
            let made = self.schema(member, &format!("{at}/{}", escape(name)), closing)?;
            Ok((name.clone(), made))
        };
        Ok(Value::Object(map.iter().map(member).collect::<Result<_, Failure>>()?))
    }

    fn pattern_properties(
        &mut self,
        value: &Value,
        at: &str,
        closing: bool,
    ) -> Result<Option<Value>, Failure> {
        let mut made = self.map(value, at, closing)?;
        let map = made.as_object_mut().expect("map() makes objects");
        let patterns: Vec<String> = map.keys().cloned().collect();
        for pattern in patterns {
            if let Err(why) = check_pattern(&pattern) {
                self.relax(&format!("{at}/{}", escape(&pattern)), why)?;
                map.shift_remove(&pattern);
            }
        }
        Ok((!map.is_empty()).then_some(made))
    }

    fn types(&mut self, value: &Value, at: &str) -> Result<Option<Value>, Failure> {
        let names: Vec<&Value> = value.as_array().map_or(vec![value], |names| names.iter().collect());
        let known = |name: &&Value| name.as_str().is_some_and(|n| TYPES.contains(&n));
        if !names.is_empty() && names.iter().all(known) {
            return Ok(Some(value.clone()));
        }
        self.relax(at, format!("expected types of JSON Schema, found {}", short(value)))?;
        Ok(None)
    }

    fn count(&mut self, key: &str, value: &Value, at: &str) -> Result<Option<Value>, Failure> {
        let number = value.as_u64().or_else(|| {
            let f = value.as_f64()?;
            (f >= 0.0 && f.fract() == 0.0 && f <= MAX_INTEGER).then_some(f as u64)
        });
        let Some(number) = number else {
            return self.bad(at, format!("expected an integer from 0 on, found {}", short(value)));
        };
        let most = if key.ends_with("Length") { MAX_LENGTH } else { MAX_ITEMS };
        if number <= most {
            return Ok(Some(number.into()));
        }
        match key {
            "maxItems" | "maxProperties" => Ok(Some(most.into())), // narrower, and still what the schema allows
            "maxLength" if self.strict => Ok(Some(most.into())),
            _ => {
                self.relax(at, format!("{number} is beyond {most}, the most that can be enforced"))?;
                Ok(None)
            }
        }
    }

    fn pattern(&mut self, value: &Value, at: &str) -> Result<Option<Value>, Failure> {
        let Some(pattern) = value.as_str() else {
            return self.bad(at, format!("expected a string, found {}", short(value)));
        };
        match check_pattern(pattern) {
            Ok(()) => Ok(Some(value.clone())),
            Err(why) => self.relax(at, why).map(|()| None),
        }
    }

    fn format(
        &mut self,
        value: &Value,
        siblings: &Map<String, Value>,
        at: &str,
    ) -> Result<Option<Value>, Failure> {
        let name = value.as_str().unwrap_or_default();
        let text = siblings.get("type").is_none_or(|t| t.to_string().contains("\"string\""));
        if FORMATS.contains(&name) && text {
            return Ok(Some(value.clone()));
        }
        if text && !VOID_FORMATS.contains(&name) {
            self.relax(at, format!("the format {} cannot be enforced", short(value)))?;
        }
        Ok(None)
    }

    fn bound(&mut self, key: &str, value: &Value, at: &str) -> Result<Option<Value>, Failure> {
        let lower = key.ends_with("inimum");
        if key.starts_with("exclusive") && value.is_boolean() {
            return Ok(Some(value.clone())); // draft 4
        }
        let Some(number) = value.as_f64() else {
            return self.bad(at, format!("expected a number, found {}", short(value)));
        };
        if number.abs() <= MAX_INTEGER {
            return Ok(Some(value.clone()));
        }
        if (number < 0.0) == lower {
            let most = MAX_INTEGER as i64;
            return Ok(Some(if lower { -most } else { most }.into())); // narrower, and still what the schema allows
        }
        self.relax(
            at,
            format!("{} is beyond ±9007199254740991, the bounds that can be enforced", short(value)),
        )?;
        Ok(None)
    }

    fn multiple_of(&mut self, value: &Value, at: &str) -> Result<Option<Value>, Failure> {
        let Some(number) = value.as_f64().filter(|n| *n > 0.0) else {
            return self.bad(at, format!("expected a number above 0, found {}", short(value)));
        };
        // Integers, and decimals of few digits, are what the lexer can count.
        let scaled = number * 10_000.0;
        if scaled <= 1e9 && (scaled - scaled.round()).abs() < 1e-6 && scaled.round() >= 1.0 {
            return Ok(Some(value.clone()));
        }
        self.relax(at, format!("multiples of {} cannot be enforced", short(value)))?;
        Ok(None)
    }

    /// Every reference of `out` leads to a schema of the document.
    fn check_refs(&mut self, out: &mut Value) -> Result<(), Failure> {
        let mut broken = Vec::new();
        find_refs(out, "", &mut |at, target| {
            let pointer = target.strip_prefix('#').map(percent_decoded);
            let found = pointer.as_deref().and_then(|p| out.pointer(p));
            if !found.is_some_and(|schema| schema.is_object() || schema.is_boolean()) {
                let known = pointer.as_deref().is_some_and(|p| self.root.pointer(p).is_some());
                let why =
                    if target.starts_with('#') && !known { "leads nowhere" } else { "cannot be followed" };
                broken.push((at.to_owned(), format!("the reference {} {why}", short(&json!(target)))));
            }
        });
        for (at, why) in broken {
            self.relax(&format!("{at}/$ref"), why)?;
            if let Some(map) = out.pointer_mut(&at).and_then(Value::as_object_mut) {
                map.shift_remove("$ref");
            }
        }
        Ok(())
    }

    /// Compiles the whole; what fails is narrowed down to its place, which is an error or becomes anything.
    fn settle(&mut self, out: &mut Value) -> Result<(), Failure> {
        let deadline = Instant::now() + MAX_EXPLAIN;
        while let Err(why) = compiles(out, self.strict) {
            let (at, why) = culprit(out, "", why, self.strict, deadline);
            let (at, key) = match blamed(out, &at, self.strict, deadline) {
                Some(key) => (at, Some(key)),
                None => (at, None),
            };
            let place = key.as_ref().map_or(at.clone(), |key| format!("{at}/{}", escape(key)));
            self.relax(&place, why)?;
            match (out.pointer_mut(&at), key) {
                (Some(Value::Object(map)), Some(key)) => drop(map.shift_remove(&key)),
                (Some(schema), None) if !at.is_empty() => *schema = Value::Bool(true),
                _ => *out = json!({}),
            }
            if Instant::now() > deadline {
                return self.bad("", "it cannot be enforced in too many places".into());
            }
        }
        Ok(())
    }
}

/// A schema that speaks of properties or items alone means objects or arrays.
fn infer_type(schema: &mut Map<String, Value>) {
    let says = |keys: &[&str]| keys.iter().any(|key| schema.contains_key(*key));
    if says(&["type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"]) {
        return;
    }
    if says(&["properties", "patternProperties"]) {
        schema.insert("type".into(), "object".into());
    } else if says(&["items", "prefixItems"]) {
        schema.insert("type".into(), "array".into());
    }
}

fn says_nothing(key: &str, value: &Value) -> bool {
    match key {
        "uniqueItems" => value == &Value::Bool(false),
        _ => value == &Value::Bool(true),
    }
}

/// A schema that every name follows.
fn names_any(value: &Value) -> bool {
    match value {
        Value::Bool(any) => *any,
        Value::Object(map) => map.iter().all(|(k, v)| {
            (k == "type" && v == "string") || matches!(k.as_str(), "title" | "description" | "$comment")
        }),
        _ => false,
    }
}

fn nullable(mut schema: Map<String, Value>) -> Value {
    if let (Some(Value::String(name)), false) = (schema.get("type"), schema.contains_key("const")) {
        if name != "null" {
            let both = json!([name, "null"]);
            schema.insert("type".into(), both);
        }
        if let Some(Value::Array(values)) = schema.get_mut("enum") {
            if !values.contains(&Value::Null) {
                values.push(Value::Null);
            }
        }
        return Value::Object(schema);
    }
    let mut out = Map::new();
    for key in ["$defs", "definitions"] {
        if let Some(defs) = schema.shift_remove(key) {
            out.insert(key.into(), defs);
        }
    }
    out.insert("anyOf".into(), json!([schema, {"type": "null"}]));
    Value::Object(out)
}
