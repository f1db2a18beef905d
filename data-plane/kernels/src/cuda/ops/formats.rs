//! What the elements of activations, keys and values are.

/// Format of activations and of dense weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActivationType {
    /// Eight bits of mantissa, the range of f32.
    Bf16,
    /// Eleven bits of mantissa, up to 65504.
    F16,
}

/// Format of keys and values in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvElement {
    /// Two bytes.
    Bf16,
    /// Two bytes.
    F16,
    /// FP8 with four bits of exponent and three of mantissa, saturating at ±448; scale 1.
    E4m3,
}

/// By what the kernels of a model are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Formats {
    /// Of activations and dense weights.
    pub activation: ActivationType,
    /// Of keys and values.
    pub kv: KvElement,
    /// Components of a head: 64, 128 or 256.
    pub head_dim: usize,
}

impl ActivationType {
    /// As it stands in a kernel's name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// The bits of a value, rounded to nearest, ties to even.
    pub fn bits(self, value: f32) -> u16 {
        match self {
            Self::Bf16 => half::bf16::from_f32(value).to_bits(),
            Self::F16 => half::f16::from_f32(value).to_bits(),
        }
    }

    /// The value of these bits.
    pub fn value(self, bits: u16) -> f32 {
        match self {
            Self::Bf16 => half::bf16::from_bits(bits).to_f32(),
            Self::F16 => half::f16::from_bits(bits).to_f32(),
        }
    }
}

impl KvElement {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::E4m3 => 1,
        }
    }

    /// As it stands in a kernel's name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::E4m3 => "e4m3",
        }
    }
}
