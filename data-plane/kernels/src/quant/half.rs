//! IEEE half precision and bfloat16 to and from `f32`, in plain integer arithmetic (the SIMD paths use the hardware's
//! conversion, which gives the same bits).

/// The half-precision number of these bits.
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let fraction = u32::from(bits & 0x03ff);
    let magnitude = match (exponent, fraction) {
        (0, 0) => 0,
        (0, _) => {
            // A subnormal: fraction × 2^-24, exact in single precision (the fraction has at most ten bits).
            #[expect(clippy::cast_precision_loss, reason = "ten bits fit")]
            let value = fraction as f32 * (1.0 / 16_777_216.0);
            value.to_bits()
        }
        // A NaN becomes quiet, as the hardware's conversion makes it.
        (0x1f, 1..) => 0x7fc0_0000 | (fraction << 13),
        (0x1f, 0) => 0x7f80_0000,
        _ => ((exponent + 112) << 23) | (fraction << 13),
    };
    f32::from_bits(sign | magnitude)
}

/// Rounds to half precision, ties to even; too large becomes infinity.
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let rounded = if magnitude > 0x7f80_0000 {
        0x7e00 | ((magnitude >> 13) & 0x03ff)
    } else if magnitude >= 0x4780_0000 {
        0x7c00
    } else if magnitude < 0x3880_0000 {
        // Below the normal range. Adding one half makes the float adder round at 2^-24, the subnormals' unit.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5_f32.to_bits()
    } else {
        let rebased = magnitude - (112 << 23);
        (rebased + 0x0fff + ((rebased >> 13) & 1)) >> 13
    };
    #[expect(clippy::cast_possible_truncation, reason = "every branch above is below 2^15")]
    let rounded = rounded as u16;
    sign | rounded
}

/// The bfloat16 number of these bits.
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

pub(super) fn f16_at(bytes: &[u8], offset: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[offset], bytes[offset + 1]]))
}

pub(super) fn bf16_at(bytes: &[u8], offset: usize) -> f32 {
    bf16_to_f32(u16::from_le_bytes([bytes[offset], bytes[offset + 1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        for (bits, value) in [
            (0x0000, 0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0400, 6.103_515_6e-5),
            (0x0001, 5.960_464_5e-8),
            (0x03ff, 6.097_555e-5),
            (0x3555, 0.333_251_95),
            (0x7c00, f32::INFINITY),
        ] {
            assert_eq!(f16_to_f32(bits), value, "{bits:#x}");
            assert_eq!(f32_to_f16(value), bits, "{value}");
        }
        assert!(f16_to_f32(0x7e01).is_nan());
        assert_eq!(f32_to_f16(f32::NAN) & 0x7c00, 0x7c00);
    }

    #[test]
    fn every_half_survives_the_round_trip() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if !value.is_nan() {
                assert_eq!(f32_to_f16(value), bits, "{bits:#x}");
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        assert_eq!(f32_to_f16(1.0 + 1.0 / 2048.0), 0x3c00);
        assert_eq!(f32_to_f16(1.0 + 3.0 / 2048.0), 0x3c02);
        assert_eq!(f32_to_f16(1.0 + 1.0 / 2047.0), 0x3c01);
        assert_eq!(f32_to_f16(65519.0), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(2.0_f32.powi(-25)), 0x0000);
        assert_eq!(f32_to_f16(2.0_f32.powi(-25) * 1.001), 0x0001);
    }
}
