//! Which instruction set the kernels use: detected once, overridable for tests.

/// Instruction sets, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust; every architecture.
    Generic,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F/BW/VL with VNNI.
    Avx512Vnni,
    /// The same, and AMX-INT8 tiles where a call has rows enough.
    AmxInt8,
}

impl Isa {
    /// The best that this machine has.
    pub fn detect() -> Self {
        Self::Generic
    }

    /// Everything that this machine has, weakest first.
    pub fn available() -> Vec<Self> {
        [Self::Generic, Self::Avx2, Self::Avx512Vnni, Self::AmxInt8]
            .into_iter()
            .filter(|isa| *isa <= Self::detect())
            .collect()
    }

    /// A stable name for logs and fingerprints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Generic => "generic",
            Self::Avx2 => "avx2",
            Self::Avx512Vnni => "avx512-vnni",
            Self::AmxInt8 => "amx-int8",
        }
    }
}
