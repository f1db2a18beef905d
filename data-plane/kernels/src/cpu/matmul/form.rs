//! The integer forms of the quantised types as constants, so that a kernel is compiled for each.

use crate::quant::GgmlType;
use crate::quant::blocks::{CodeBits, IntegerForm};

/// Constants of one quantised type.
pub(super) trait Form {
    const FORM: IntegerForm;

    /// Sub-blocks of a block of 32 inputs.
    const SUBS: usize = 32 / Self::FORM.sub_block_elements;
    /// log₂ of the zero point; 0 where there is none.
    const ZERO_BITS: u32 = if Self::FORM.zero_point == 0 { 0 } else { Self::FORM.zero_point.ilog2() };
    /// Bytes of sixteen scales.
    const SCALES_BYTES: usize = if Self::FORM.half_scales { 32 } else { 64 };
    /// Bytes of the codes of a block.
    const BLOCK_BYTES: usize = crate::cpu::packed::block_bytes(Self::FORM.code_bits);
    const FOUR_BITS: bool = matches!(Self::FORM.code_bits, CodeBits::Four);
    /// Some instruction sets take 128 off every eight-bit code, which is right for this zero point only.
    const EIGHT_BITS: bool = {
        let eight = matches!(Self::FORM.code_bits, CodeBits::Eight);
        assert!(!eight || Self::FORM.zero_point == 128);
        eight
    };
}

macro_rules! forms {
    ($($name:ident),*) => {
        $(
            #[allow(non_camel_case_types, clippy::allow_attributes, reason = "GGML's own names, some of which the lint accepts")]
            pub(super) struct $name;

            impl Form for $name {
                const FORM: IntegerForm = match IntegerForm::of(GgmlType::$name) {
                    Some(form) => form,
                    None => unreachable!(),
                };
            }
        )*

        /// Runs a generic call with the form of a type, if it has one.
        macro_rules! with_form {
            ($ggml_type:expr, $form:ident => $call:expr) => {
                match $ggml_type {
                    $(
                        crate::quant::GgmlType::$name => {
                            type $form = crate::cpu::matmul::form::$name;
                            $call
                        }
                    )*
                    crate::quant::GgmlType::F32
                    | crate::quant::GgmlType::F16
                    | crate::quant::GgmlType::BF16 => {}
                }
            };
        }
        pub(super) use with_form;
    };
}

forms!(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K);
