//! Values as Python prints them: str(), repr(), json.dumps() and the white space of str.strip(). Chat templates are
//! written against Jinja2, so a prompt differs wherever these differ.

use crate::template::MAX_OUTPUT_BYTES;
use minijinja::value::{Kwargs, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::cell::Cell;

/// Nesting that json.dumps follows before it gives up; message JSON is at most this deep as well.
const MAX_DEPTH: usize = 200;

thread_local! {
    /// While a render with marked characters runs (provenance.rs): the first code point of the plane that marks
    /// lie in. Marks are printed as they are, where Python would escape a private character.
    static MARKS: Cell<u32> = const { Cell::new(0) };
}

/// Runs `f` while the characters from `base` on for a plane count as marks; 0 for none.
pub fn with_marks<T>(base: u32, f: impl FnOnce() -> T) -> T {
    struct Restore(u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            MARKS.set(self.0);
        }
    }
    let _restore = Restore(MARKS.replace(base));
    f()
}

fn is_mark(c: char) -> bool {
    let base = MARKS.get();
    base != 0 && (c as u32) & 0xff_0000 == base
}

/// str.isspace(), the set that strip() and split() go by: White_Space and the four separators 1C to 1F.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// repr(float): shortest digits that read back, exponent form below 1e-4 and from 1e16 on.
pub fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("exponent form");
    let exponent: i32 = exponent.parse().expect("an integer");
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

fn is_printable(c: char) -> bool {
    thread_local! {
        static HIDDEN: regex_syntax::hir::ClassUnicode = {
            let hir = regex_syntax::parse(r"[\p{C}\p{Z}]").expect("a constant pattern");
            let regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class)) = hir.kind() else {
                unreachable!("a Unicode class")
            };
            class.clone()
        };
    }
    if c == ' ' || is_mark(c) {
        return true;
    }
    HIDDEN.with(|class| {
        let ranges = class.ranges();
        let next = ranges.partition_point(|r| r.end() < c);
        ranges.get(next).is_none_or(|r| r.start() > c)
    })
}

fn str_repr(out: &mut String, s: &str) {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c if (c as u32) < 0x100 => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if (c as u32) < 0x1_0000 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    out.push(quote);
}

fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value is nested deeper than {MAX_DEPTH} levels"))
}

/// A list that holds a list twice, sixty times over, is small and prints without end.
fn check_size(depth: usize, bytes: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    if bytes > MAX_OUTPUT_BYTES {
        let detail = format!("a value prints as more than {MAX_OUTPUT_BYTES} bytes");
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    Ok(())
}

fn repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    check_size(depth, out.len())?;
    match value.kind() {
        ValueKind::String => str_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => out.push_str(&float_of(value)),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Map if value.as_object().is_some() => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(out, &key, depth + 1)?;
                out.push_str(": ");
                repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let tuple = value.downcast_object_ref::<Tuple>().is_some();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter()? {
                out.push_str(if count > 0 { ", " } else { "" });
                repr(out, &item, depth + 1)?;
                count += 1;
            }
            out.push_str(if tuple && count == 1 { "," } else { "" });
            out.push(if tuple { ')' } else { ']' });
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn float_of(value: &Value) -> String {
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float_repr)
}

/// str(value), what `{{ value }}` prints.
pub fn to_str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => Ok(float_of(value)),
        ValueKind::Map | ValueKind::Seq if value.as_object().is_some() => {
            let mut out = String::new();
            repr(&mut out, value, 0)?;
            Ok(out)
        }
        _ => Ok(value.to_string()),
    }
}

struct Json {
    out: String,
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    item: String,
    colon: String,
}

impl Json {
    fn string(&mut self, s: &str) {
        self.out.push('"');
        for c in s.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 => self.out.push_str(&format!("\\u{:04x}", c as u32)),
                c if self.ascii && c > '~' && !is_mark(c) => {
                    let mut units = [0u16; 2];
                    for unit in c.encode_utf16(&mut units) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn newline(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn items(
        &mut self,
        brackets: [char; 2],
        keys: bool,
        items: Vec<(String, Value)>,
        depth: usize,
    ) -> Result<(), Error> {
        self.out.push(brackets[0]);
        let count = items.len();
        for (i, (key, item)) in items.into_iter().enumerate() {
            if i > 0 {
                let separator = self.item.clone();
                self.out.push_str(&separator);
            }
            self.newline(depth + 1);
            if keys {
                self.string(&key);
                let colon = self.colon.clone();
                self.out.push_str(&colon);
            }
            self.value(&item, depth + 1)?;
        }
        if count > 0 {
            self.newline(depth);
        }
        self.out.push(brackets[1]);
        Ok(())
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        check_size(depth, self.out.len())?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => match float_of(value).as_str() {
                "nan" => self.out.push_str("NaN"),
                "inf" => self.out.push_str("Infinity"),
                "-inf" => self.out.push_str("-Infinity"),
                plain => self.out.push_str(plain),
            },
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => {
                let mut items = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    items.push((json_key(&key)?, item));
                }
                if self.sort {
                    items.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.items(['{', '}'], true, items, depth)?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|v| (String::new(), v)).collect();
                self.items(['[', ']'], false, items, depth)?;
            }
            kind => {
                return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson cannot print {kind}")))
            }
        }
        Ok(())
    }
}

fn json_key(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::None => "null".into(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.into(),
        _ => to_str(key)?,
    })
}

/// The `tojson` filter as transformers defines it: json.dumps(x, ensure_ascii=False, …), no HTML escapes.
pub fn tojson(value: &Value, positional: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let ascii = match positional {
        Some(flag) => flag.is_true(),
        None => kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        Some(v) if v.as_str().is_some() => v.as_str().map(str::to_owned),
        Some(v) if !v.is_none() && !v.is_undefined() => {
            let width = usize::try_from(v)?;
            if width > 64 {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson indent is {width}, expected at most 64"),
                ));
            }
            Some(" ".repeat(width))
        }
        _ => None,
    };
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    let sort = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let mut json = Json {
        out: String::new(),
        ascii,
        sort,
        item: if indent.is_some() { ",".into() } else { ", ".into() },
        colon: ": ".into(),
        indent,
    };
    if let Some(pair) = separators {
        let [item, colon]: [String; 2] = pair.try_into().map_err(|_| {
            Error::new(ErrorKind::InvalidOperation, "tojson separators, expected two strings")
        })?;
        (json.item, json.colon) = (item, colon);
    }
    json.value(value, 0)?;
    Ok(Value::from(json.out))
}

/// str.splitlines(): the line ends of Python, one more set than Rust's.
pub fn splitlines(s: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = s;
    while let Some(at) = rest.find(is_end) {
        let c = rest[at..].chars().next().map_or(0, char::len_utf8);
        let end = if rest[at..].starts_with("\r\n") { at + 2 } else { at + c };
        lines.push(&rest[..if keep_ends { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// Jinja2's `indent`: a last line end makes an empty last line, which stays empty.
pub fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    const MAX_BYTES: usize = 16 << 20;
    let width = kwargs.get::<Option<Value>>("width")?.or(width);
    let first = kwargs.get::<Option<bool>>("first")?.or(first).unwrap_or(false);
    let blank = kwargs.get::<Option<bool>>("blank")?.or(blank).unwrap_or(false);
    kwargs.assert_all_used()?;
    let text = to_str(value)? + "\n";
    let lines = splitlines(&text, false);
    let count = match &width {
        None => 4,
        Some(w) if w.as_str().is_some() => w.as_str().map_or(0, str::len),
        Some(w) => usize::try_from(w.clone())?,
    };
    if count.saturating_mul(lines.len()).saturating_add(text.len()) > MAX_BYTES {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("indent makes more than {MAX_BYTES} bytes"),
        ));
    }
    let unit = width.as_ref().and_then(Value::as_str).map_or_else(|| " ".repeat(count), str::to_owned);
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        out.push_str(if i > 0 { "\n" } else { "" });
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&unit);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}
