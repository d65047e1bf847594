//! A tokenizer: the BPE model, normaliser and post-processor of the `tokenizers` crate, with our own matching of
//! added tokens (added.rs) and our own splitters for the patterns we know (split.rs).

use crate::added::{AddedToken, Control, Matcher, Part};
use crate::split::Splitter;
use crate::{bad_input, internal, Failure};
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::tokenizer::{
    Model, NormalizedString, Normalizer, PostProcessor, PreTokenizedString, PreTokenizer,
};
use tokenizers::{Encoding, OffsetReferential, OffsetType, SplitDelimiterBehavior, Token};

/// Token kinds; the values are part of the C ABI.
pub const KIND_NORMAL: u8 = 0;
pub const KIND_CONTROL: u8 = 1;
pub const KIND_USER_DEFINED: u8 = 2;
pub const KIND_UNUSED: u8 = 3;
pub const KIND_BYTE: u8 = 4;

/// No vocabulary has more rows; a file that claims more is broken.
const MAX_TOKENS: usize = 1 << 22;
/// Longest text of one call.
const MAX_TEXT_BYTES: usize = 1 << 28;
/// The regex engine of a pattern we do not know gives up silently on longer pieces than this.
const MAX_REGEX_PIECE_BYTES: usize = 250_000;

enum Split {
    Known(Splitter),
    Crate(PreTokenizerWrapper),
}

pub struct Tokenizer {
    model: BPE,
    normalizer: Option<NormalizerWrapper>,
    split: Split,
    added: Matcher,            // matched in the text as it comes
    added_normalized: Matcher, // matched after normalisation
    prefix: Vec<u32>,          // what add_special puts before and after
    suffix: Vec<u32>,
    pub pieces: Vec<u8>,   // raw bytes of all tokens, one after the other
    pub offsets: Vec<u64>, // of token i: pieces[offsets[i] .. offsets[i + 1]]
    pub kinds: Vec<u8>,
    by_text: HashMap<String, u32>, // added tokens
}

/// What a GGUF says, types as in the file.
pub struct GgufVocabulary<'a> {
    pub pre: &'a str,
    pub tokens: Vec<&'a str>,
    pub types: &'a [u8],
    pub merges: Vec<&'a str>,
    pub ignore_merges: bool,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
}

fn byte_chars() -> [char; 256] {
    let mut next = 256u32;
    std::array::from_fn(|b| match b as u32 {
        b @ (33..=126 | 161..=172 | 174..=255) => char::from_u32(b).expect("below 256"),
        _ => {
            next += 1;
            char::from_u32(next - 1).expect("below 512")
        }
    })
}

/// The byte that a character of the alphabet stands for.
fn char_bytes() -> [Option<u8>; 512] {
    let mut bytes = [None; 512];
    for (b, c) in byte_chars().into_iter().enumerate() {
        bytes[c as usize] = Some(b as u8);
    }
    bytes
}

/// Appends the bytes of a byte-level token; a token that holds a character outside the alphabet is literal text.
fn push_piece(pieces: &mut Vec<u8>, token: &str, bytes: &[Option<u8>; 512]) {
    let start = pieces.len();
    for c in token.chars() {
        match bytes.get(c as usize) {
            Some(Some(b)) => pieces.push(*b),
            _ => {
                pieces.truncate(start);
                pieces.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

fn gguf_kind(index: usize, kind: u8) -> Result<u8, Failure> {
    Ok(match kind {
        1 => KIND_NORMAL,
        2 | 3 => KIND_CONTROL, // 2 is "unknown", which no text may produce either
        4 => KIND_USER_DEFINED,
        5 => KIND_UNUSED,
        6 => KIND_BYTE,
        _ => return Err(bad_input(format!("tokenizer.ggml.token_type[{index}] is {kind}, expected 1 to 6"))),
    })
}

/// The two tokens of each merge. What they are in the vocabulary is not looked at here.
fn merge_pairs(merges: &[&str]) -> Result<Vec<(String, String)>, Failure> {
    let mut pairs = Vec::with_capacity(merges.len());
    for (i, merge) in merges.iter().enumerate() {
        let from = merge.chars().next().map_or(0, char::len_utf8);
        let Some(space) = merge[from..].find(' ').map(|p| p + from) else {
            return Err(bad_input(format!(
                "tokenizer.ggml.merges[{i}] is '{merge}', expected two tokens with a space between"
            )));
        };
        pairs.push((merge[..space].to_owned(), merge[space + 1..].to_owned()));
    }
    Ok(pairs)
}

/// Why no model can be built of this: the search for the entry to name, done only after a failure.
fn explain(v: &GgufVocabulary, kinds: &[u8], fallback: String) -> Failure {
    let mut ids: HashMap<&str, usize> = HashMap::with_capacity(v.tokens.len());
    for (i, token) in v.tokens.iter().enumerate() {
        if let Some(first) = ids.insert(token, i) {
            return bad_input(format!("tokenizer.ggml.tokens[{i}] repeats '{token}' of entry {first}"));
        }
    }
    for (i, (left, right)) in merge_pairs(&v.merges).unwrap_or_default().iter().enumerate() {
        for token in [left, right, &format!("{left}{right}")] {
            let found = ids.get(token.as_str());
            if found.is_some_and(|&id| kinds[id] != KIND_CONTROL) {
                continue;
            }
            let what = if found.is_some() { "a control token" } else { "not in tokenizer.ggml.tokens" };
            return bad_input(format!(
                "tokenizer.ggml.merges[{i}] needs the token '{token}', which is {what}"
            ));
        }
    }
    bad_input(fallback)
}

/// A tokenizer.json. Truncation and padding are the caller's business and are not read.
#[derive(Deserialize)]
struct JsonFile {
    model: BPE,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<tokenizers::PostProcessorWrapper>,
    decoder: Option<DecoderWrapper>,
    #[serde(default)]
    added_tokens: Vec<JsonToken>,
}

#[derive(Deserialize)]
struct JsonToken {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

/// The crate panics on some malformed files; to the caller that is a bad file like any other.
fn parse_json(text: &str) -> Result<JsonFile, Failure> {
    let parsed = std::panic::catch_unwind(|| serde_json::from_str(text).map_err(|e| e.to_string()));
    let parsed = parsed.unwrap_or_else(|_| Err("its model contradicts itself".into()));
    parsed.map_err(|e| bad_input(format!("tokenizer.json: {e}")))
}

/// Texts of the control tokens of a tokenizer.json, without reading the rest; none for an empty text.
pub fn control_texts(json: &str) -> Result<Vec<String>, Failure> {
    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        added_tokens: Vec<JsonToken>,
    }
    if json.is_empty() {
        return Ok(Vec::new());
    }
    let file: File = serde_json::from_str(json).map_err(|e| bad_input(format!("tokenizer.json: {e}")))?;
    Ok(file.added_tokens.into_iter().filter(|t| t.special).map(|t| t.content).collect())
}

impl Tokenizer {
    pub fn from_gguf(v: &GgufVocabulary) -> Result<Tokenizer, Failure> {
        let Some(splitter) = Splitter::from_name(v.pre) else {
            return Err(bad_input(format!(
                "tokenizer.ggml.pre is '{}', expected one of qwen35, qwen2, llama-bpe, smollm",
                v.pre
            )));
        };
        if v.tokens.is_empty() || v.tokens.len() > MAX_TOKENS {
            return Err(bad_input(format!(
                "tokenizer.ggml.tokens has {} entries, expected 1 to {MAX_TOKENS}",
                v.tokens.len()
            )));
        }
        if v.types.len() != v.tokens.len() {
            return Err(bad_input(format!(
                "tokenizer.ggml.token_type has {} entries, expected one for each of the {} tokens",
                v.types.len(),
                v.tokens.len()
            )));
        }
        let kinds: Vec<u8> =
            v.types.iter().enumerate().map(|(i, &t)| gguf_kind(i, t)).collect::<Result<_, _>>()?;
        let merges = merge_pairs(&v.merges)?;
        let added: Vec<AddedToken> = (0..v.tokens.len())
            .filter(|&i| kinds[i] == KIND_CONTROL || kinds[i] == KIND_USER_DEFINED)
            .map(|i| AddedToken {
                id: i as u32,
                content: v.tokens[i].to_owned(),
                control: kinds[i] == KIND_CONTROL,
                ..Default::default()
            })
            .collect();
        // Control tokens stay out of the model: with ignore_merges a whole piece of text could be one.
        let mut vocab = tokenizers::models::bpe::Vocab::with_capacity(v.tokens.len());
        let plain = (0..v.tokens.len()).filter(|&i| kinds[i] != KIND_CONTROL);
        vocab.extend(plain.clone().map(|i| (v.tokens[i].to_owned(), i as u32)));
        let controls: HashSet<&str> =
            added.iter().filter(|t| t.control).map(|t| t.content.as_str()).collect();
        let unique = vocab.len() + controls.len() == v.tokens.len()
            && !controls.iter().any(|&t| vocab.contains_key(t));
        // The crate joins a merge in a buffer of the longest token's size.
        let longest = plain.map(|i| v.tokens[i].len()).max().unwrap_or(0);
        if !unique || merges.iter().any(|(a, b)| a.len() + b.len() > longest) {
            return Err(explain(v, &kinds, "the tokenizer's vocabulary is inconsistent".into()));
        }
        let model = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(v.ignore_merges)
            .build()
            .map_err(|e| explain(v, &kinds, format!("the tokenizer's vocabulary: {e}")))?;
        let nfc = matches!(splitter, Splitter::Qwen35 | Splitter::Qwen2);
        let mut tokenizer = Tokenizer {
            model,
            normalizer: nfc.then(|| NormalizerWrapper::NFC(NFC)),
            split: Split::Known(splitter),
            added: Matcher::new(added),
            added_normalized: Matcher::new(Vec::new()),
            prefix: v.bos.into_iter().collect(),
            suffix: v.eos.into_iter().collect(),
            pieces: Vec::new(),
            offsets: Vec::new(),
            kinds,
            by_text: HashMap::new(),
        };
        tokenizer.fill_pieces(&v.tokens);
        Ok(tokenizer)
    }

    /// From the text of a tokenizer.json: byte-level BPE only, since pieces must be bytes.
    pub fn from_json(text: &str) -> Result<Tokenizer, Failure> {
        let mut file = parse_json(text)?;
        file.model.dropout = None;
        if !matches!(file.decoder, Some(DecoderWrapper::ByteLevel(_))) {
            return Err(bad_input(
                "tokenizer.json: the decoder is not ByteLevel, the only kind supported".into(),
            ));
        }
        let Some(pre) = file.pre_tokenizer else {
            return Err(bad_input(
                "tokenizer.json: pre_tokenizer is missing, expected one with ByteLevel".into(),
            ));
        };
        let vocab = file.model.get_vocab();
        let ids = vocab.values().copied().chain(file.added_tokens.iter().map(|t| t.id));
        let last = ids.max().unwrap_or(0) as usize;
        if last >= MAX_TOKENS {
            return Err(bad_input(format!("tokenizer.json: token id {last}, expected below {MAX_TOKENS}")));
        }
        let mut texts = vec![""; last + 1];
        let mut kinds = vec![KIND_UNUSED; last + 1];
        for (token, &id) in &vocab {
            texts[id as usize] = token;
            kinds[id as usize] = KIND_NORMAL;
        }
        let (mut raw, mut normalized) = (Vec::new(), Vec::new());
        for t in &file.added_tokens {
            if let Some(&id) = vocab.get(&t.content).filter(|&&id| id != t.id) {
                return Err(bad_input(format!(
                    "tokenizer.json: the added token '{}' has id {}, but the model's vocabulary says {id}",
                    t.content, t.id
                )));
            }
            texts[t.id as usize] = &t.content;
            kinds[t.id as usize] = if t.special { KIND_CONTROL } else { KIND_USER_DEFINED };
            let (single_word, lstrip, rstrip) = (t.single_word, t.lstrip, t.rstrip);
            let content = t.content.clone();
            let token = AddedToken { id: t.id, content, control: t.special, single_word, lstrip, rstrip };
            // Control tokens are always matched in the text as it comes, so that provenance stays exact.
            if t.normalized && !t.special {
                normalized
                    .push(AddedToken { content: normalize(file.normalizer.as_ref(), &t.content)?, ..token });
            } else {
                raw.push(token);
            }
        }
        let (prefix, suffix) = special_frame(file.post_processor.as_ref())?;
        let mut tokenizer = Tokenizer {
            model: file.model,
            normalizer: file.normalizer,
            split: known_splitter(&pre).map_or_else(|| Split::Crate(pre), Split::Known),
            added: Matcher::new(raw),
            added_normalized: Matcher::new(normalized),
            prefix,
            suffix,
            pieces: Vec::new(),
            offsets: Vec::new(),
            kinds,
            by_text: HashMap::new(),
        };
        tokenizer.fill_pieces(&texts);
        Ok(tokenizer)
    }

    /// Fills pieces, offsets and the index of added tokens from each token's text in the file.
    fn fill_pieces(&mut self, texts: &[&str]) {
        let bytes = char_bytes();
        self.offsets.push(0);
        for (id, &text) in texts.iter().enumerate() {
            let hex =
                text.strip_prefix("<0x").and_then(|t| t.strip_suffix('>')).map(|h| u8::from_str_radix(h, 16));
            match (self.kinds[id], hex) {
                (KIND_BYTE, Some(Ok(byte))) => self.pieces.push(byte),
                (KIND_CONTROL | KIND_USER_DEFINED, _) => {
                    self.pieces.extend_from_slice(text.as_bytes());
                    self.by_text.insert(text.to_owned(), id as u32);
                }
                _ => push_piece(&mut self.pieces, text, &bytes),
            }
            self.offsets.push(self.pieces.len() as u64);
        }
    }

    /// The id of an added token by its text, or of a normal token by its bytes' text.
    pub fn find(&self, text: &str) -> Option<u32> {
        if let Some(&id) = self.by_text.get(text) {
            return Some(id);
        }
        let chars = byte_chars();
        let mapped: String = text.bytes().map(|b| chars[b as usize]).collect();
        self.model.token_to_id(&mapped)
    }

    pub fn encode(&self, text: &str, control: Control, add_special: bool) -> Result<Vec<u32>, Failure> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(bad_input(format!(
                "the text has {} bytes, expected at most {MAX_TEXT_BYTES}",
                text.len()
            )));
        }
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if add_special {
            ids.extend_from_slice(&self.prefix);
        }
        for part in self.added.cut(text, control) {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(range) => self.encode_normalized(&text[range], &mut ids)?,
            }
        }
        if add_special {
            ids.extend_from_slice(&self.suffix);
        }
        Ok(ids)
    }

    fn encode_normalized(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Failure> {
        let ascii_is_fixed = matches!(self.normalizer, None | Some(NormalizerWrapper::NFC(_)));
        let owned;
        let text = if ascii_is_fixed && (self.normalizer.is_none() || text.is_ascii()) {
            text
        } else {
            owned = normalize(self.normalizer.as_ref(), text)?;
            &owned
        };
        for part in self.added_normalized.cut(text, Control::Nowhere) {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(range) => self.encode_plain(&text[range], ids)?,
            }
        }
        Ok(())
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Failure> {
        let mut push = |mapped: &str| -> Result<(), Failure> {
            let tokens = self.model.tokenize(mapped).map_err(|e| internal(format!("tokenizing: {e}")))?;
            ids.extend(tokens.iter().map(|t| t.id));
            Ok(())
        };
        match &self.split {
            Split::Known(splitter) => {
                let chars = byte_chars();
                let mut mapped = String::new();
                splitter.split(text, &mut |piece| {
                    mapped.clear();
                    mapped.extend(piece.bytes().map(|b| chars[b as usize]));
                    push(&mapped)
                })
            }
            Split::Crate(pre) => {
                let mut string = PreTokenizedString::from(text);
                pre.pre_tokenize(&mut string).map_err(|e| internal(format!("pre-tokenizing: {e}")))?;
                for (piece, _, _) in string.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
                    if piece.len() > MAX_REGEX_PIECE_BYTES {
                        return Err(bad_input(format!(
                            "the text has an unbroken run of {} bytes, expected at most {MAX_REGEX_PIECE_BYTES} with this tokenizer.json's own pre-tokenizer",
                            piece.len()
                        )));
                    }
                    push(piece)?;
                }
                Ok(())
            }
        }
    }
}

fn normalize(normalizer: Option<&NormalizerWrapper>, text: &str) -> Result<String, Failure> {
    let mut string = NormalizedString::from(text);
    if let Some(n) = normalizer {
        n.normalize(&mut string).map_err(|e| internal(format!("normalizing: {e}")))?;
    }
    Ok(string.get().to_owned())
}

/// What the post-processor puts around a sequence, found by letting it frame one marker token.
fn special_frame(
    processor: Option<&tokenizers::PostProcessorWrapper>,
) -> Result<(Vec<u32>, Vec<u32>), Failure> {
    let Some(processor) = processor else {
        return Ok((Vec::new(), Vec::new()));
    };
    let marker = Encoding::from_tokens(vec![Token::new(u32::MAX, "x".into(), (0, 1))], 0);
    let framed = processor
        .process(marker, None, true)
        .map_err(|e| bad_input(format!("tokenizer.json: post_processor: {e}")))?;
    let ids = framed.get_ids();
    let Some(at) = ids.iter().position(|&id| id == u32::MAX) else {
        return Err(bad_input("tokenizer.json: post_processor drops the text".into()));
    };
    Ok((ids[..at].to_vec(), ids[at + 1..].to_vec()))
}

/// Our splitter that does the same as this pre-tokenizer, if there is one.
fn known_splitter(pre: &PreTokenizerWrapper) -> Option<Splitter> {
    let PreTokenizerWrapper::Sequence(sequence) = pre else { return None };
    let [first, PreTokenizerWrapper::ByteLevel(bytes)] = sequence.as_ref() else { return None };
    if bytes.add_prefix_space {
        return None;
    }
    match first {
        PreTokenizerWrapper::Split(s)
            if !bytes.use_regex && !s.invert && s.behavior == SplitDelimiterBehavior::Isolated =>
        {
            match &s.pattern {
                SplitPattern::Regex(pattern) => Splitter::from_pattern(pattern),
                SplitPattern::String(_) => None,
            }
        }
        PreTokenizerWrapper::Digits(d) if bytes.use_regex && d.individual_digits => Some(Splitter::Smollm),
        _ => None,
    }
}
