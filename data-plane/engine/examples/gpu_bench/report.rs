//! Measurements as lines of JSON.

use weir_kernels::cuda::Peaks;

/// What a piece of work must at least move and compute.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Bytes from and to memory.
    pub(crate) bytes: f64,
    /// Multiplications and additions on the tensor cores.
    pub(crate) flops: f64,
}

impl Work {
    /// The shortest time that the device's peaks allow, in seconds.
    pub(crate) fn bound_s(&self, peaks: &Peaks) -> f64 {
        (self.bytes / peaks.bandwidth).max(self.flops / peaks.tensor_flops)
    }
}

/// A rate that was measured, and the one that the bound allows.
pub(crate) struct Measurement<'a> {
    pub(crate) what: String,
    /// In `unit`s, what is done in `seconds`.
    pub(crate) amount: f64,
    pub(crate) unit: &'static str,
    pub(crate) seconds: f64,
    pub(crate) work: Work,
    pub(crate) peaks: &'a Peaks,
}

impl Measurement<'_> {
    /// Prints it: the rate, the bound of the rate, and the share of the bound that is reached.
    pub(crate) fn print(&self) {
        let Self { what, amount, unit, seconds, work, peaks } = self;
        let bound_s = work.bound_s(peaks);
        let (value, bound, share) = (amount / seconds, amount / bound_s, bound_s / seconds);
        println!(
            r#"{{"what":"{what}","value":{value:.1},"unit":"{unit}","bound":{bound:.1},"share":{share:.3},"microseconds":{:.1}}}"#,
            seconds * 1e6
        );
    }
}
