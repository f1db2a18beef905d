//! Products by cuBLASLt, where it is installed.
//!
//! Its sums have the order of whatever algorithm it picks for a shape, so that a row's bits may depend on how many rows there
//! are. It is used for large steps alone, and for those shapes for which it was measured to be faster.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::from_ref;
use std::sync::{Mutex, PoisonError};

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;

use super::formats::ActivationType;
use super::matmul::{Output, Product};
use crate::cuda::{CudaError, Device, DeviceBuffer};

/// Every symbol of the library that is called.
const SYMBOLS: [&str; 12] = [
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
];
/// What NVIDIA recommends for Hopper and later; older devices take less.
const WORKSPACE_BYTES: usize = 32 << 20;
/// Alignment that is told where there is more.
const ALIGNMENT_MAX: u64 = 256;

/// The library on one device.
pub(super) struct Library {
    handle: sys::cublasLtHandle_t,
    workspace: DeviceBuffer<u8>,
    /// What its heuristic has chosen.
    algorithms: Mutex<HashMap<Shape, sys::cublasLtMatmulAlgo_t>>,
}

// SAFETY: the library's handle may be used from any thread.
unsafe impl Send for Library {}
// SAFETY: and by several; what changes is behind a lock.
unsafe impl Sync for Library {}

/// What an algorithm is chosen by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    rows: usize,
    n: usize,
    k: usize,
    stride: usize,
    kind: usize,
    activation: ActivationType,
    alignment: u64,
}

impl Library {
    /// Opens the library. `None` if it is not installed, not whole, or does not work: the own kernels do.
    ///
    /// # Errors
    /// [`CudaError`] if its workspace does not fit.
    pub(super) fn open(device: &Device) -> Result<Option<Self>, CudaError> {
        // SAFETY: loads the library by its well-known names, and then only looks at symbols' addresses.
        let is_whole = unsafe {
            sys::is_culib_present()
                && SYMBOLS.iter().all(|symbol| sys::culib().get::<*const ()>(symbol.as_bytes()).is_ok())
        };
        if !is_whole {
            return Ok(None);
        }
        device.bind()?;
        let Ok(handle) = result::create_handle() else { return Ok(None) };
        let workspace = device.zeros(WORKSPACE_BYTES)?;
        Ok(Some(Self { handle, workspace, algorithms: Mutex::default() }))
    }

    /// Submits a product of a dense weight, without a bias. False if the library has no algorithm for it; nothing is submitted
    /// then.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(super) fn multiply(&self, device: &Device, product: Product<'_>) -> Result<bool, CudaError> {
        let Product { x, num_rows, weight, bias, out, stride, column } = product;
        let activation = weight.dense_type().expect("a dense weight");
        assert!(bias.is_none(), "biases are the own kernels'");
        if num_rows == 0 {
            return Ok(true);
        }
        let (n, k, kind) = (weight.rows(), weight.columns(), out.kind());
        let (pointer, element, beta) = match &out {
            Output::Activations(out) => (out.pointer(), 2, 0.0_f32),
            Output::Single(out) => (out.pointer(), 4, 0.0),
            Output::Residual(out) => (out.pointer(), 4, 1.0),
        };
        let to = pointer + (column * element) as u64;
        let alignment = 1 << (to | ALIGNMENT_MAX).trailing_zeros();
        let shape = Shape { rows: num_rows, n, k, stride, kind, activation, alignment };
        device.bind()?;
        let description = Description::new(&shape).map_err(failed("describing a product to cuBLASLt"))?;
        let Ok(algorithm) = self.algorithm(&shape, &description) else { return Ok(false) };
        let alpha = 1.0_f32;
        // SAFETY: the matrices have the shapes described, checked by the caller; alpha and beta are read before the call
        // returns; the workspace is used by this stream only, in order.
        unsafe {
            result::matmul(
                self.handle,
                description.operation,
                from_ref(&alpha).cast(),
                from_ref(&beta).cast(),
                weight.bytes().pointer() as *const c_void,
                description.weight,
                x.pointer() as *const c_void,
                description.x,
                to as *const c_void,
                description.out,
                to as *mut c_void,
                description.out,
                &raw const algorithm,
                self.workspace.pointer() as *mut c_void,
                WORKSPACE_BYTES,
                device.stream().cu_stream().cast(),
            )
        }
        .map_err(failed("a product by cuBLASLt"))?;
        Ok(true)
    }

    fn algorithm(
        &self,
        shape: &Shape,
        description: &Description,
    ) -> Result<sys::cublasLtMatmulAlgo_t, CublasError> {
        let mut algorithms = self.algorithms.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(algorithm) = algorithms.get(shape) {
            return Ok(*algorithm);
        }
        // SAFETY: handle and descriptions are alive.
        let found = unsafe {
            result::get_matmul_algo_heuristic(
                self.handle,
                description.operation,
                description.weight,
                description.x,
                description.out,
                description.out,
                description.preference,
            )
        }?;
        algorithms.insert(*shape, found.algo);
        Ok(found.algo)
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Library").finish_non_exhaustive()
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the handle was created once, and is destroyed once. An error leaves nothing to do.
        unsafe { result::destroy_handle(self.handle) }.unwrap_or_default();
    }
}

/// A product in the library's terms, whose matrices are column-major: `out [n, rows] = weight [k, n]ᵀ · x [k, rows]`.
struct Description {
    operation: sys::cublasLtMatmulDesc_t,
    weight: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    preference: sys::cublasLtMatmulPreference_t,
}

impl Description {
    fn new(shape: &Shape) -> Result<Self, CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        use sys::cudaDataType_t as Type;
        let &Shape { rows, n, k, stride, kind, activation, alignment } = shape;
        let input = match activation {
            ActivationType::Bf16 => Type::CUDA_R_16BF,
            ActivationType::F16 => Type::CUDA_R_16F,
        };
        let output = if kind == 0 { input } else { Type::CUDA_R_32F };
        let leading = |length: usize| i64::try_from(length).expect("far fewer components");
        let null = std::ptr::null_mut::<c_void>();
        // Whatever of it exists is destroyed if the rest cannot be made.
        let mut this = Self {
            operation: null.cast(),
            weight: null.cast(),
            x: null.cast(),
            out: null.cast(),
            preference: null.cast(),
        };
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        this.operation = result::create_matmul_desc(compute, Type::CUDA_R_32F)?;
        this.weight = result::create_matrix_layout(input, k as u64, n as u64, leading(k))?;
        this.x = result::create_matrix_layout(input, k as u64, rows as u64, leading(k))?;
        this.out = result::create_matrix_layout(output, n as u64, rows as u64, leading(stride))?;
        this.preference = result::create_matmul_pref()?;
        // CUBLAS_OP_T
        let transposed = 1_i32;
        // SAFETY: the description is alive, and the value is of the attribute's type.
        unsafe {
            result::set_matmul_desc_attribute(
                this.operation,
                Attribute::CUBLASLT_MATMUL_DESC_TRANSA,
                from_ref(&transposed).cast(),
                size_of_val(&transposed),
            )
        }?;
        this.prefer(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &(WORKSPACE_BYTES as u64))?;
        let alignment = u32::try_from(alignment).expect("at most 256");
        this.prefer(Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment)?;
        this.prefer(Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment)?;
        Ok(this)
    }

    fn prefer<T>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: &T,
    ) -> Result<(), CublasError> {
        // SAFETY: the preference is alive, and the caller gives a value of the attribute's type.
        unsafe {
            result::set_matmul_pref_attribute(
                self.preference,
                attribute,
                from_ref(value).cast(),
                size_of_val(value),
            )
        }
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: each was created once and is destroyed once. An error leaves nothing to do.
        unsafe {
            if !self.preference.is_null() {
                result::destroy_matmul_pref(self.preference).unwrap_or_default();
            }
            for layout in [self.out, self.x, self.weight] {
                if !layout.is_null() {
                    result::destroy_matrix_layout(layout).unwrap_or_default();
                }
            }
            if !self.operation.is_null() {
                result::destroy_matmul_desc(self.operation).unwrap_or_default();
            }
        }
    }
}

fn failed(doing: &'static str) -> impl FnOnce(CublasError) -> CudaError {
    move |error| CudaError::Driver { doing, message: error.to_string() }
}
