//! What runs the forward passes, as an operator chooses it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_engine::executor::sim::CostModel;

use crate::config::ConfigError;
use crate::cuda::{Cuda, NoGpu};

/// Tokens that a simulated device has pages for by default: a few hundred conversations.
const DEFAULT_SIM_KV_TOKENS: u32 = 1 << 20;
/// Positions of a simulated page.
const SIM_BLOCK_TOKENS: u32 = 16;
/// Longest that any one part of the cost model may be.
const SIM_COST_MAX: Duration = Duration::from_secs(10);

/// A device by its name in configuration and on the command line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The fastest that this build and this machine have; never the simulated one.
    #[default]
    Auto,
    /// The cores of this machine.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
    /// None: tokens are noise, and steps take what a stated cost model says.
    Sim,
}

/// No device has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such device; there are auto, cpu, cuda and sim")]
pub struct UnknownDevice;

impl Device {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Sim => "sim",
        }
    }
}

impl Device {
    /// What it stands for on this machine, never [`Device::Auto`].
    ///
    /// # Errors
    /// [`NoGpu`] if a GPU was asked for and cannot be used.
    pub(crate) fn resolve(self, cuda: &Cuda) -> Result<Self, NoGpu> {
        if matches!(self, Self::Cpu | Self::Sim) {
            return Ok(self);
        }
        match cuda.probe() {
            Ok(name) => {
                tracing::info!(name, "serving from the GPU");
                Ok(Self::Cuda)
            }
            Err(no_gpu) if self == Self::Cuda => Err(no_gpu),
            Err(no_gpu) if no_gpu.is_plain_absence() => {
                tracing::info!(reason = %no_gpu, "serving from the CPU");
                Ok(Self::Cpu)
            }
            Err(no_gpu) => {
                tracing::warn!(reason = %no_gpu, "a GPU driver is there and cannot be used: serving from the CPU");
                Ok(Self::Cpu)
            }
        }
    }

    /// Sequences that run at once unless configured: more than fill a batch, few enough that each keeps a usable rate.
    pub(crate) fn default_max_seats(self) -> u32 {
        if self == Self::Cuda { 256 } else { 64 }
    }

    /// New tokens in one step unless configured: a decode token for each seat, and prefill chunks beside them.
    pub(crate) fn default_step_tokens(self) -> u32 {
        if self == Self::Cuda { 2048 } else { 512 }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Device {
    type Err = UnknownDevice;

    fn from_str(name: &str) -> Result<Self, UnknownDevice> {
        let all = [Self::Auto, Self::Cpu, Self::Cuda, Self::Sim];
        all.into_iter().find(|device| device.name() == name).ok_or(UnknownDevice)
    }
}

/// The simulated device as it stands in the file: `[worker.sim]`. A step takes the sum of its parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RawSim {
    /// Microseconds of every step.
    pub step_us: f64,
    /// Microseconds of every new token in it.
    pub token_us: f64,
    /// Nanoseconds of every position that a row attends over.
    pub context_token_ns: f64,
    /// Tokens that the KV pool holds.
    pub kv_tokens: u32,
}

impl Default for RawSim {
    fn default() -> Self {
        Self { step_us: 0.0, token_us: 0.0, context_token_ns: 0.0, kv_tokens: DEFAULT_SIM_KV_TOKENS }
    }
}

/// The checked section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sim {
    pub(crate) cost: CostModel,
    pub(crate) num_pages: u32,
}

impl TryFrom<RawSim> for Sim {
    type Error = ConfigError;

    fn try_from(raw: RawSim) -> Result<Self, ConfigError> {
        let RawSim { step_us, token_us, context_token_ns, kv_tokens } = raw;
        if kv_tokens < SIM_BLOCK_TOKENS {
            return Err(ConfigError::Sim { key: "kv_tokens", reason: "less than one page of 16 tokens" });
        }
        Ok(Self {
            cost: CostModel {
                step: cost("step_us", step_us / 1e6)?,
                token: cost("token_us", token_us / 1e6)?,
                context_token: cost("context_token_ns", context_token_ns / 1e9)?,
            },
            num_pages: kv_tokens / SIM_BLOCK_TOKENS,
        })
    }
}

fn cost(key: &'static str, seconds: f64) -> Result<Duration, ConfigError> {
    let cost = Duration::try_from_secs_f64(seconds).ok().filter(|cost| *cost <= SIM_COST_MAX);
    cost.ok_or(ConfigError::Sim { key, reason: "not between zero and ten seconds" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_is_found_by_its_name() {
        for device in [Device::Auto, Device::Cpu, Device::Cuda, Device::Sim] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("gpu".parse::<Device>(), Err(UnknownDevice));
    }

    #[test]
    fn a_simulated_device_is_checked_and_its_units_are_kept_apart() {
        let raw = RawSim { step_us: 5000.0, token_us: 0.5, context_token_ns: 2.0, kv_tokens: 100 };
        let sim = Sim::try_from(raw.clone()).unwrap();
        assert_eq!(sim.num_pages, 6);
        assert_eq!(sim.cost.step, Duration::from_millis(5));
        assert_eq!(sim.cost.token, Duration::from_nanos(500));
        assert_eq!(sim.cost.context_token, Duration::from_nanos(2));
        let key = |raw: RawSim| Sim::try_from(raw).unwrap_err().to_string();
        assert!(key(RawSim { kv_tokens: 15, ..raw.clone() }).contains("worker.sim.kv_tokens"));
        for bad in [-1.0, f64::NAN, 1e12] {
            assert!(key(RawSim { token_us: bad, ..raw.clone() }).contains("worker.sim.token_us"), "{bad}");
        }
    }
}
