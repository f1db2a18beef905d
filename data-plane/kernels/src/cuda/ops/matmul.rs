//! Products of activations and weights.

use std::time::Duration;

use super::{Formats, Operations, Weight};
use crate::cuda::launch::Kernel;
use crate::cuda::{CudaError, Device, DeviceBuffer};
use crate::quant::GgmlType;

/// Where a product goes: columns of rows of some stride.
#[derive(Debug)]
pub enum Output<'a> {
    /// Rounded to the activations' format.
    Activations(&'a mut DeviceBuffer<u16>),
    /// In single precision: logits.
    Single(&'a mut DeviceBuffer<f32>),
    /// Added to what is there: the residual stream.
    Residual(&'a mut DeviceBuffer<f32>),
}

impl Output<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Activations(out) => out.len(),
            Self::Single(out) | Self::Residual(out) => out.len(),
        }
    }

    /// The kernels' number for it.
    pub(super) const fn kind(&self) -> usize {
        match self {
            Self::Activations(_) => 0,
            Self::Single(_) => 1,
            Self::Residual(_) => 2,
        }
    }
}

/// The operands of a product, as [`Operations::matmul`] takes them.
#[derive(Debug)]
pub(super) struct Product<'a> {
    pub(super) x: &'a DeviceBuffer<u16>,
    pub(super) num_rows: usize,
    pub(super) weight: &'a Weight,
    pub(super) bias: Option<&'a DeviceBuffer<f32>>,
    pub(super) out: Output<'a>,
    pub(super) stride: usize,
    pub(super) column: usize,
}

/// What computes a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Multiplier {
    /// The kernels of this crate: a row has the same bits whatever stands beside it.
    Own,
    /// cuBLASLt: a row's bits may depend on the number of rows.
    Library,
}

/// Fewest rows that the library is used for: more than any step that only decodes has.
pub const LIBRARY_ROWS_MIN: usize = 257;
/// By how much the library has to be faster to be worth its bits.
const LIBRARY_GAIN: f64 = 1.05;
/// Runs that are measured, after one that is not.
const MEASURED_RUNS: u32 = 3;

/// Columns of a block that computes few rows.
const NARROW_COLUMNS: usize = 16;
/// Rows and columns of a block that computes many.
const TILE: usize = 128;
const BLOCK: usize = 256;

/// One kind of weight: the kernels for up to 16 rows, for up to 64, and for more. All give the same bits.
#[derive(Debug)]
struct Forms {
    up_to_16: Kernel,
    up_to_64: Kernel,
    tiled: Kernel,
}

#[derive(Debug)]
pub(super) struct Kernels {
    dense: Forms,
    q8_0: Forms,
    q4_0: Forms,
    q4_1: Forms,
}

impl Kernels {
    pub(super) fn load(device: &Device, formats: Formats) -> Result<Self, CudaError> {
        let t = formats.activation.name();
        // Three stages (128 rows of 64 activations, and as many of the weight's), and the tile's sums in single precision.
        let forms = |weight: &str, group_bytes: usize| {
            let shared_bytes = 3 * TILE * (2 * 64 + group_bytes) + 4 * TILE * TILE;
            Ok::<_, CudaError>(Forms {
                up_to_16: Kernel::load(device, &format!("matmul_{weight}_{t}_m16"), 0)?,
                up_to_64: Kernel::load(device, &format!("matmul_{weight}_{t}_m64"), 0)?,
                tiled: Kernel::load(device, &format!("matmul_{weight}_{t}_tiled"), shared_bytes)?,
            })
        };
        Ok(Self {
            dense: forms("dense", 128)?,
            q8_0: forms("q8_0", 64)?,
            q4_0: forms("q4_0", 32)?,
            q4_1: forms("q4_1", 32)?,
        })
    }
}

impl Operations {
    /// `out[r, column + j] (= or +=) sum over k of x[r, k] · weight[j, k], + bias[j]` for the first `num_rows` rows; `x` is
    /// `[rows, weight's columns]`, rows of `out` are `stride` apart. `stride` and `column` are even.
    ///
    /// A row has the same bits whatever stands beside it and however many there are; but for the shapes that
    /// [`Operations::choose_multiplier`] gave to the library, from [`LIBRARY_ROWS_MIN`] rows on.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn matmul(
        &self,
        x: &DeviceBuffer<u16>,
        num_rows: usize,
        weight: &Weight,
        bias: Option<&DeviceBuffer<f32>>,
        out: Output<'_>,
        (stride, column): (usize, usize),
    ) -> Result<(), CudaError> {
        let shape = (weight.rows(), weight.columns(), out.kind());
        let by_library = num_rows >= LIBRARY_ROWS_MIN
            && bias.is_none()
            && weight.packing().is_none()
            && self.by_library.contains(&shape);
        let multiplier = if by_library { Multiplier::Library } else { Multiplier::Own };
        self.multiply(Product { x, num_rows, weight, bias, out, stride, column }, multiplier)
    }

    /// The same, without a bias, by a stated multiplier; what the library has no algorithm for is computed by the own kernels.
    /// Panics if the library is asked for and not there, or the weight is packed.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn matmul_by(
        &self,
        multiplier: Multiplier,
        x: &DeviceBuffer<u16>,
        num_rows: usize,
        weight: &Weight,
        out: Output<'_>,
        (stride, column): (usize, usize),
    ) -> Result<(), CudaError> {
        self.multiply(Product { x, num_rows, weight, bias: None, out, stride, column }, multiplier)
    }

    /// Measures both multipliers on a product, and uses the library for others of its shape if it is faster. True if so.
    /// Waits for the device; what is in `out` afterwards is of no use.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn choose_multiplier(
        &mut self,
        x: &DeviceBuffer<u16>,
        num_rows: usize,
        weight: &Weight,
        out: Output<'_>,
        (stride, column): (usize, usize),
    ) -> Result<bool, CudaError> {
        if !self.has_library() || num_rows < LIBRARY_ROWS_MIN || weight.packing().is_some() {
            return Ok(false);
        }
        let shape = (weight.rows(), weight.columns(), out.kind());
        let mut product = Product { x, num_rows, weight, bias: None, out, stride, column };
        let own = self.measure(&mut product, Multiplier::Own)?;
        let Ok(library) = self.measure(&mut product, Multiplier::Library) else { return Ok(false) };
        let is_faster = library.as_secs_f64() * LIBRARY_GAIN < own.as_secs_f64();
        if is_faster {
            self.by_library.insert(shape);
        }
        Ok(is_faster)
    }

    fn measure(&self, product: &mut Product<'_>, multiplier: Multiplier) -> Result<Duration, CudaError> {
        self.multiply(product.again(), multiplier)?;
        let started = self.device.record_time()?;
        for _ in 0..MEASURED_RUNS {
            self.multiply(product.again(), multiplier)?;
        }
        self.device.record_time()?.since(&started)
    }

    fn multiply(&self, mut product: Product<'_>, multiplier: Multiplier) -> Result<(), CudaError> {
        let Product { x, num_rows, weight, bias, ref out, stride, column } = product;
        self.check_weight(weight);
        let (n, k) = (weight.rows(), weight.columns());
        assert!(x.len() >= num_rows * k, "an input for each row");
        assert!(
            column + n <= stride && stride.is_multiple_of(2) && column.is_multiple_of(2),
            "columns of a row"
        );
        assert!(out.len() >= num_rows * stride, "an output for each row");
        assert!(bias.is_none_or(|bias| bias.len() == n), "a bias for each column");
        if multiplier == Multiplier::Library {
            let library = self.library.as_ref().expect("the library is there");
            if library.multiply(&self.device, product.again())? {
                return Ok(());
            }
        }
        self.multiply_by_kernels(product)
    }

    fn multiply_by_kernels(&self, product: Product<'_>) -> Result<(), CudaError> {
        let Product { x, num_rows, weight, bias, out, stride, column } = product;
        let (n, k) = (weight.rows(), weight.columns());
        let forms = match weight.packing() {
            Some(GgmlType::Q8_0) => &self.matmul.q8_0,
            Some(GgmlType::Q4_0) => &self.matmul.q4_0,
            Some(GgmlType::Q4_1) => &self.matmul.q4_1,
            _ => &self.matmul.dense,
        };
        let narrow = |rows| (n.div_ceil(NARROW_COLUMNS), num_rows.div_ceil(rows));
        let (kernel, grid) = match num_rows {
            0..=16 => (&forms.up_to_16, narrow(16)),
            17..=64 => (&forms.up_to_64, narrow(64)),
            _ => (&forms.tiled, (n.div_ceil(TILE), num_rows.div_ceil(TILE))),
        };
        let kind = out.kind();
        let launch = self.launch(kernel);
        let launch = match out {
            Output::Activations(out) => launch.writes(out),
            Output::Single(out) | Output::Residual(out) => launch.writes(out),
        };
        let launch = launch.reads(x).reads(weight.bytes()).reads_if_any(bias);
        let launch = launch.int(kind).int(num_rows).int(n).int(k).int(stride).int(column);
        // SAFETY: the arguments of `matmul_*`; lengths were checked.
        unsafe { launch.submit(grid, BLOCK) }
    }
}

impl Product<'_> {
    fn again(&mut self) -> Product<'_> {
        let Self { x, num_rows, weight, bias, out, stride, column } = self;
        let out = match out {
            Output::Activations(out) => Output::Activations(out),
            Output::Single(out) => Output::Single(out),
            Output::Residual(out) => Output::Residual(out),
        };
        Product { x, num_rows: *num_rows, weight, bias: *bias, out, stride: *stride, column: *column }
    }
}
