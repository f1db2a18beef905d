//! GPT-2's spelling of bytes as printable characters, in which byte-level vocabularies and merge rules are written.
//!
//! Source: `bytes_to_unicode` of GPT-2's `encoder.py` (Radford et al., 2019): printable bytes stand for themselves,
//! the others for the characters from U+0100 on.

/// Appends the bytes that `spelling` stands for; if some character stands for none, the spelling's own bytes.
pub(crate) fn decode_into(spelling: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for character in spelling.chars() {
        match byte_of(character) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(spelling.as_bytes());
                return;
            }
        }
    }
}

/// The byte a character stands for.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The character that stands for a byte.
#[cfg(test)]
pub(crate) fn spelling_of(byte: u8) -> char {
    let code = match u32::from(byte) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => code,
        code @ 0..=0x20 => 0x100 + code,
        0xAD => 0x143,
        code => 0x121 + code - 0x7F,
    };
    char::from_u32(code).expect("below the surrogates")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_spelling() {
        let mut out = Vec::new();
        let spelling: String = (0..=255).map(spelling_of).collect();
        decode_into(&spelling, &mut out);
        assert_eq!(out, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn known_spellings() {
        let check = |spelling: &str, bytes: &[u8]| {
            let mut out = Vec::new();
            decode_into(spelling, &mut out);
            assert_eq!(out, bytes);
        };
        check("Ġthe", b" the");
        check("Ċ", b"\n");
        check("âĢĻ", "’".as_bytes());
        check("a中", "a中".as_bytes());
    }
}
