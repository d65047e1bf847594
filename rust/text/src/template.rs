//! A chat template: minijinja set up as transformers sets up Jinja2 (trim_blocks, lstrip_blocks, loop controls,
//! tojson without HTML escapes, raise_exception, strftime_now, Python's string methods), inside limits.

use crate::apart::apart;
use crate::provenance::Guard;
use crate::python;
use crate::{bad_input, Failure};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use serde_json::{Map, Value as Json};
use std::fmt::Write as _;
use std::io;
use std::ops::Range;
use std::sync::Arc;

const MAX_SOURCE_BYTES: usize = 1 << 20;
const MAX_INPUT_BYTES: usize = 64 << 20;
pub const MAX_OUTPUT_BYTES: usize = 128 << 20;
/// About a second of work and 512 MB of strings at the very worst; a chat of 10,000 messages needs a third of it.
const FUEL: u64 = 8_000_000;
const MAX_RECURSION: usize = 150;

pub struct ChatTemplate(Arc<Compiled>);

struct Compiled {
    env: Environment<'static>,
    guard: Guard,
    specials: Map<String, Json>, // bos_token, eos_token, …
}

/// What a render takes, as JSON text; empty for none.
pub struct Request {
    pub messages: String,
    pub tools: String,
    pub kwargs: String,
    pub add_generation_prompt: bool,
    /// Seconds since 1970 for strftime_now, read as UTC; None for the machine's clock and time zone.
    pub now: Option<i64>,
}

pub struct Rendered {
    pub text: String,
    /// Bytes that came from the caller's strings and could take part in a control token.
    pub guarded: Vec<Range<usize>>,
}

impl ChatTemplate {
    pub fn new(source: &str, control: Vec<String>, specials: &str) -> Result<ChatTemplate, Failure> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(bad_input(format!(
                "the chat template has {} bytes, expected at most {MAX_SOURCE_BYTES}",
                source.len()
            )));
        }
        let specials: Map<String, Json> = parse("the special tokens", specials)?.unwrap_or_default();
        let source = source.to_owned();
        apart(move || {
            let mut env = environment();
            env.add_template_owned("chat", without_generation_tags(&source))
                .map_err(|e| bad_input(format!("the chat template does not parse: {}", sentence(&e))))?;
            let constants = specials.values().filter_map(|v| v.as_str().map(str::to_owned)).collect();
            let guard = Guard::new(&source, control, constants);
            Ok(ChatTemplate(Arc::new(Compiled { env, guard, specials })))
        })
    }

    pub fn render(&self, request: Request) -> Result<Rendered, Failure> {
        let (compiled, request) = (self.0.clone(), Arc::new(request));
        apart(move || compiled.render(&request))
    }
}

impl Compiled {
    fn render(&self, request: &Request) -> Result<Rendered, Failure> {
        let total = request.messages.len() + request.tools.len() + request.kwargs.len();
        if total > MAX_INPUT_BYTES {
            return Err(bad_input(format!(
                "the messages have {total} bytes of JSON, expected at most {MAX_INPUT_BYTES}"
            )));
        }
        let messages: Option<Vec<Json>> = parse("messages", &request.messages)?;
        let mut messages =
            messages.ok_or_else(|| bad_input("messages is empty, expected a JSON array".into()))?;
        messages.iter_mut().for_each(open_arguments);
        let tools: Option<Vec<Json>> = parse("tools", &request.tools)?;
        let kwargs: Map<String, Json> = parse("chat_template_kwargs", &request.kwargs)?.unwrap_or_default();
        let caller = Json::Array(vec![
            Json::Array(messages),
            tools.map_or(Json::Null, Json::Array),
            Json::Object(kwargs),
        ]);
        self.guard.render(&caller, &|caller| self.render_once(caller, request))
    }

    /// One pass of the template over `[messages, tools, kwargs]`.
    fn render_once(&self, caller: &Json, request: &Request) -> Result<String, Failure> {
        let mut context = self.specials.clone();
        context.insert("messages".into(), caller[0].clone());
        context.insert("tools".into(), caller[1].clone());
        context.insert("documents".into(), Json::Null);
        context.insert("add_generation_prompt".into(), Json::Bool(request.add_generation_prompt));
        context.extend(caller[2].as_object().cloned().unwrap_or_default());
        NOW.set(request.now);
        let template = self.env.get_template("chat").map_err(|e| bad_input(sentence(&e)))?;
        let mut out = Limited { bytes: Vec::new(), full: false };
        let done = template.render_captured_to(to_value(&Json::Object(context)), &mut out).map(|_| ());
        if out.full {
            return Err(bad_input(format!("the chat template printed more than {MAX_OUTPUT_BYTES} bytes")));
        }
        done.map_err(|e| bad_input(format!("the chat template {}", sentence(&e))))?;
        String::from_utf8(out.bytes).map_err(|_| bad_input("the chat template printed invalid UTF-8".into()))
    }
}

/// JSON as template values; null is None.
fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::from(i),
            (None, Some(u)) => Value::from(u),
            (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => Value::from(items.iter().map(to_value).collect::<Vec<_>>()),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (k.as_str(), to_value(v)))),
    }
}

/// Refuses a write that would pass the output limit.
struct Limited {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for &mut Limited {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + data.len() > MAX_OUTPUT_BYTES {
            self.full = true;
            return Err(io::Error::other("output limit"));
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn parse<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> Result<Option<T>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(text)
        .map(Some)
        .map_err(|e| bad_input(format!("{what} is not the expected JSON: {e}")))
}

/// OpenAI's API carries tool-call arguments as a string of JSON, templates expect the object: a string that parses
/// to an object becomes it.
fn open_arguments(message: &mut Json) {
    let Some(calls) = message.get_mut("tool_calls").and_then(Json::as_array_mut) else { return };
    for call in calls {
        let Some(arguments) = call.get_mut("function").and_then(|f| f.get_mut("arguments")) else { continue };
        if let Some(Ok(object @ Json::Object(_))) = arguments.as_str().map(serde_json::from_str) {
            *arguments = object;
        }
    }
}

/// One sentence for the caller: what raise_exception said, or what went wrong and where.
fn sentence(error: &Error) -> String {
    if error.kind() == ErrorKind::OutOfFuel {
        return "ran longer than any chat needs and was stopped".into();
    }
    let detail = error.detail().unwrap_or_default();
    if let Some(raised) = detail.strip_prefix(RAISED) {
        return format!("refuses the messages: {raised}");
    }
    let mut text = format!("failed: {}", error.kind());
    if !detail.is_empty() {
        let _ = write!(text, " ({detail})");
    }
    if let Some(line) = error.line() {
        let _ = write!(text, " in its line {line}");
    }
    text
}

const RAISED: &str = "\u{1}raised ";

/// `{% generation %}` only marks text for training and prints nothing itself; minijinja does not know the tag.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(inside) = rest[at + 2..].find("%}") else { break };
        let end = at + 2 + inside;
        let tag = &rest[at..end];
        out.push_str(&rest[..at]);
        match tag[2..].trim_matches(['-', '+', ' ', '\t', '\n', '\r']) {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("the standard delimiters"));
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(MAX_RECURSION);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(method);
    env.set_formatter(|out, _, value| {
        if value.is_undefined() {
            return Ok(());
        }
        let written = match value.as_str() {
            Some(s) => out.write_str(s),
            None => out.write_str(&python::to_str(value)?),
        };
        written.map_err(Error::from)
    });
    // Jinja2 asks iter(value), which None has not and Undefined has.
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env.add_filter("tojson", python::tojson);
    env.add_filter("string", |value: &Value| python::to_str(value));
    env.add_filter("trim", trim);
    env.add_filter("indent", python::indent);
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
    });
    env.add_function("strftime_now", strftime_now);
    env
}

fn trim(value: &Value, chars: Option<&str>) -> Result<Value, Error> {
    Ok(strip(&python::to_str(value)?, chars, true, true))
}

fn strip(s: &str, chars: Option<&str>, left: bool, right: bool) -> Value {
    let drop = |c: char| chars.map_or_else(|| python::is_space(c), |set| set.contains(c));
    let s = if left { s.trim_start_matches(drop) } else { s };
    Value::from(if right { s.trim_end_matches(drop) } else { s })
}

/// Whether a `{…}` of a format string holds a number of five digits or more: minijinja would pad to any width.
fn has_wide_field(format: &str) -> bool {
    format
        .split('{')
        .skip(1)
        .filter_map(|f| f.split('}').next())
        .any(|field| field.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() >= 5))
}

/// Python's methods: those of `pycompat`, and ours where it goes by Rust's idea of white space or lines.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (ValueKind::String, Some(s)) = (value.kind(), value.as_str()) {
        match name {
            "strip" | "lstrip" | "rstrip" => {
                let (chars,): (Option<&str>,) = from_args(args)?;
                return Ok(strip(s, chars, name != "rstrip", name != "lstrip"));
            }
            "splitlines" => {
                let (keep_ends,): (Option<bool>,) = from_args(args)?;
                let lines = python::splitlines(s, keep_ends.unwrap_or(false));
                return Ok(Value::from(lines.into_iter().map(Value::from).collect::<Vec<_>>()));
            }
            "split" => {
                let (separator, limit, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
                let limit = kwargs.get::<Option<i64>>("maxsplit")?.or(limit).unwrap_or(-1);
                kwargs.assert_all_used()?;
                if separator.as_ref().is_none_or(Value::is_none) && limit < 0 {
                    let words = s.split(python::is_space).filter(|w| !w.is_empty());
                    return Ok(Value::from(words.map(Value::from).collect::<Vec<_>>()));
                }
            }
            "format" if has_wide_field(s) => {
                return Err(Error::new(ErrorKind::InvalidOperation, "format: a field is wider than 9999"));
            }
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(s.strip_prefix(prefix).unwrap_or(s)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(s.strip_suffix(suffix).unwrap_or(s)));
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

thread_local! {
    static NOW: std::cell::Cell<Option<i64>> = const { std::cell::Cell::new(None) };
}

/// datetime.now().strftime(format).
fn strftime_now(format: &str) -> Result<String, Error> {
    let refuse = |why: &str| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {why}"));
    if format.len() > 256 {
        return Err(refuse("the format is longer than 256 bytes"));
    }
    let c_format = std::ffi::CString::new(format).map_err(|_| refuse("the format holds a zero byte"))?;
    let mut buffer = vec![0u8; 4096];
    // SAFETY: all pointers are to live locals of the right type, and strftime is told the buffer's size.
    let length = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        let broken_down = match NOW.get() {
            Some(seconds) => libc::gmtime_r(&(seconds as libc::time_t), &mut tm),
            None => libc::localtime_r(&libc::time(std::ptr::null_mut()), &mut tm),
        };
        if broken_down.is_null() {
            return Err(refuse("the time is out of range"));
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), c_format.as_ptr(), &tm)
    };
    buffer.truncate(length);
    String::from_utf8(buffer).map_err(|_| refuse("the result is not UTF-8"))
}
