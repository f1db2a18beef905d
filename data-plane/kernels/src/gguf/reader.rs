//! A cursor over untrusted bytes: every read is checked, nothing is reserved before its bytes are known to exist.

use super::GgufError;

/// Names longer than this are not names. GGML itself allows 64 bytes for tensors; keys are dotted paths.
pub(super) const MAX_NAME_BYTES: u64 = 1024;
/// Longest metadata text: chat templates are tens of kilobytes, licences hundreds.
const MAX_TEXT_BYTES: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    pub(super) fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let truncated = GgufError::Truncated { what, offset: self.offset, wanted: len };
        let Ok(len) = usize::try_from(len) else { return Err(truncated) };
        let end = self.offset.checked_add(len).filter(|end| *end <= self.bytes.len()).ok_or(truncated)?;
        let taken = &self.bytes[self.offset..end];
        self.offset = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let taken = self.take(N as u64, what)?;
        Ok(taken.try_into().expect("take returned N bytes"))
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, GgufError> {
        Ok(self.array::<1>(what)?[0])
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, GgufError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub(super) fn boolean(&mut self) -> Result<bool, GgufError> {
        match self.u8("a boolean")? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(GgufError::Bool { value }),
        }
    }

    pub(super) fn name(&mut self, what: &'static str) -> Result<String, GgufError> {
        self.limited_text(what, MAX_NAME_BYTES)
    }

    pub(super) fn text(&mut self) -> Result<String, GgufError> {
        self.limited_text("a text", MAX_TEXT_BYTES)
    }

    fn limited_text(&mut self, what: &'static str, limit: u64) -> Result<String, GgufError> {
        let len = self.u64(what)?;
        if len > limit {
            return Err(GgufError::Limit { what, actual: len, limit });
        }
        let offset = self.offset;
        let taken = self.take(len, what)?;
        match std::str::from_utf8(taken) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(GgufError::Utf8 { what, offset }),
        }
    }
}
