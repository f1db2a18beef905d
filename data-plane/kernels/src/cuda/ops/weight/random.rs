//! Weights of no model, for measurements: what a product costs depends on shapes and formats, and (through the power that
//! switching bits takes) on the data being no constant.

use super::super::formats::ActivationType;
use super::super::repack::{GROUP, group_bytes};
use super::{Form, Weight, WeightError};
use crate::cuda::Device;
use crate::quant::GgmlType;
use crate::random::Random;

/// Bytes of codes or dense elements before they repeat: 2 MiB and one element, so that rows differ.
const PATTERN_BYTES: usize = (2 << 20) + 2;
/// Blocks of a group, each with a scale.
const SCALES: usize = 2;

impl Weight {
    /// A matrix of evenly distributed numbers around zero that keeps the size of what it is multiplied by (variance
    /// 1 / columns): packed if the kernels read the type packed, else dense in `activation`. The same seed gives the same matrix.
    ///
    /// # Errors
    /// [`WeightError`].
    pub fn random(
        device: &Device,
        activation: ActivationType,
        ggml_type: GgmlType,
        (rows, columns): (usize, usize),
        seed: u64,
    ) -> Result<Self, WeightError> {
        let is_possible = rows > 0 && columns > 0 && columns.is_multiple_of(GROUP / SCALES);
        let bytes = Self::device_bytes(ggml_type, (rows, columns)).filter(|_| is_possible);
        let bytes = bytes.ok_or(WeightError::Shape { rows, columns })?;
        let mut buffer = device.zeros::<u8>(bytes)?;
        let mut random = Random(seed);
        #[expect(clippy::cast_precision_loss, reason = "rows have some thousand elements")]
        let deviation = (columns as f32).sqrt().recip();
        let form = match group_bytes(ggml_type) {
            None => {
                let largest = 3.0_f32.sqrt() * deviation;
                let element = |_| activation.bits(largest * random.unit()).to_le_bytes();
                let pattern: Vec<u8> = (0..PATTERN_BYTES / 2).flat_map(element).collect();
                device.fill(&mut buffer, 0..bytes, &pattern)?;
                Form::Dense(activation)
            }
            Some(group_bytes) => {
                let codes: Vec<u8> = (0..PATTERN_BYTES).map(|_| random.next().to_le_bytes()[0]).collect();
                let num_values = if ggml_type == GgmlType::Q8_0 { 256.0_f32 } else { 16.0 };
                let scale = 12.0_f32.sqrt() * deviation / num_values;
                let groups = rows * columns.div_ceil(GROUP);
                let (scales, minimums) = (groups * group_bytes, groups * (group_bytes + 2 * SCALES));
                device.fill(&mut buffer, 0..scales, &codes)?;
                device.fill(&mut buffer, scales..minimums, &half::f16::from_f32(scale).to_le_bytes())?;
                // Nothing to fill where the type has none.
                let minimum = half::f16::from_f32(-7.5 * scale).to_le_bytes();
                device.fill(&mut buffer, minimums..bytes, &minimum)?;
                Form::Packed(ggml_type)
            }
        };
        Ok(Self { bytes: buffer, form, rows, columns })
    }
}
