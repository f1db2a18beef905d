//! Which instruction set the kernels use: detected once, overridable for tests.

use super::{amx, simd};

/// Instruction sets, weakest first. They differ in speed only: every one gives the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust; every architecture.
    Generic,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F/BW/DQ/VL with VNNI.
    Avx512Vnni,
    /// The same, and AMX-INT8 tiles where a call has rows enough.
    AmxInt8,
}

impl Isa {
    const ALL: [Self; 4] = [Self::Generic, Self::Avx2, Self::Avx512Vnni, Self::AmxInt8];

    /// The best that this machine has. Asks the kernel for the use of AMX tiles if the machine has them.
    pub fn detect() -> Self {
        if !simd::has_avx512_vnni() {
            if simd::has_avx2() { Self::Avx2 } else { Self::Generic }
        } else if amx::permitted() {
            Self::AmxInt8
        } else {
            Self::Avx512Vnni
        }
    }

    /// Everything that this machine has, weakest first.
    pub fn available() -> Vec<Self> {
        let best = Self::detect();
        Self::ALL.into_iter().filter(|isa| *isa <= best).collect()
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
