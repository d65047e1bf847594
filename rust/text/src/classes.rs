//! Unicode general categories as one byte per code point: the letters, marks, numbers and white space that the
//! pre-tokeniser patterns speak of. The tables are those of `regex-syntax`, so a hand-written matcher and the
//! `tokenizers` crate's own regexes agree on every code point.

use regex_syntax::hir::{Class, HirKind};
use std::sync::OnceLock;

pub const LETTER: u8 = 1; // \p{L}
pub const MARK: u8 = 2; // \p{M}
pub const NUMBER: u8 = 4; // \p{N}
pub const SPACE: u8 = 8; // \s, the property White_Space

pub struct Classes(Vec<u8>);

impl Classes {
    /// The bits of one character.
    #[inline]
    pub fn of(&self, c: char) -> u8 {
        self.0[c as usize]
    }

    fn build() -> Classes {
        let mut bits = vec![0u8; 0x11_0000];
        for (pattern, bit) in [(r"\p{L}", LETTER), (r"\p{M}", MARK), (r"\p{N}", NUMBER), (r"\s", SPACE)] {
            let hir = regex_syntax::parse(pattern).expect("a constant pattern");
            let HirKind::Class(Class::Unicode(class)) = hir.kind() else { unreachable!("a Unicode class") };
            for range in class.ranges() {
                for b in &mut bits[range.start() as usize..=range.end() as usize] {
                    *b |= bit;
                }
            }
        }
        Classes(bits)
    }
}

/// The table, built at first use (about a millisecond).
pub fn classes() -> &'static Classes {
    static TABLE: OnceLock<Classes> = OnceLock::new();
    TABLE.get_or_init(Classes::build)
}
