//! The engine's dials, checked once against what the executor can do.

use crate::executor::Capacity;

/// Dials of one engine. [`EngineConfig::for_capacity`] gives sound values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineConfig {
    /// Most new tokens in a step. At least one decode token for each seat and one prefill chunk on top, so that
    /// decodes cannot starve prefills.
    pub step_tokens_max: u32,
    /// Most prefill tokens in a step that also decodes: what a decode waits for at most.
    pub prefill_tokens_beside_decode_max: u32,
    /// Prefill chunks end at absolute multiples of this (or at the end of the known tokens), whatever else is in
    /// the batch. A multiple of the block length.
    pub chunk_tokens: u32,
    /// Most sequences that run at once.
    pub seats: u32,
    /// Most sequences that wait. Beyond it `add` refuses: the gateway's queue is the place to wait longer.
    pub waiting_max: u32,
    /// Most prompt tokens over all waiting sequences; bounds the memory of the queue.
    pub waiting_tokens_max: u64,
    /// Share of service that batch gets at least while both classes wait, in thousandths.
    pub batch_floor_permille: u32,
    /// How many sequences may be admitted past one that comes before them but does not fit; then all others
    /// wait until it does.
    pub bypass_max: u32,
    /// Steps for which a sequence may hold its seat while another tenant, served less, waits in its class.
    pub seat_quantum_steps: u32,
}

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A dial is outside what the executor or the other dials allow.
    #[error("{dial} is {actual}, allowed is {min} to {max}")]
    OutOfRange {
        /// Which dial.
        dial: &'static str,
        /// Its value.
        actual: u64,
        /// Least allowed.
        min: u64,
        /// Most allowed.
        max: u64,
    },
    /// Chunks must end on block boundaries.
    #[error("chunk_tokens {chunk_tokens} is not a multiple of the block length {block_tokens}")]
    UnalignedChunk {
        /// The dial.
        chunk_tokens: u32,
        /// Tokens in a block.
        block_tokens: u32,
    },
}

/// Four blocks: large enough for a matrix product to be efficient, small enough to fit beside decodes.
const CHUNK_BLOCKS: u32 = 4;
/// About 100 ms of a small model on two cores, so that inter-token gaps stay near their target.
const CHUNKS_BESIDE_DECODE: u32 = 2;
/// Enough for matrix products to be bound by arithmetic rather than by reading weights, on everything from Ampere on.
const ACCELERATOR_CHUNK_TOKENS: u32 = 512;
/// A queue this long is minutes of work for one replica.
const WAITING_MAX: u32 = 1024;
/// 64 MiB of token ids and half as much of block hashes.
const WAITING_TOKENS_MAX: u64 = 16 << 20;
/// Batch keeps moving at a tenth of the machine.
const BATCH_FLOOR_PERMILLE: u32 = 100;
/// Enough to keep seats filled while a large sequence waits, few enough that its wait is bounded by seconds.
const BYPASS_MAX: u32 = 32;
/// Long beside a usual answer, so that recomputing a yielded sequence is rare; short beside the longest.
const SEAT_QUANTUM_STEPS: u32 = 1024;

impl EngineConfig {
    /// Defaults that use all that the executor offers.
    pub fn for_capacity(capacity: &Capacity) -> Self {
        let chunk_tokens = CHUNK_BLOCKS * capacity.block_tokens;
        Self {
            step_tokens_max: capacity.max_step_tokens,
            prefill_tokens_beside_decode_max: CHUNKS_BESIDE_DECODE * chunk_tokens,
            chunk_tokens,
            seats: capacity.max_seats,
            waiting_max: WAITING_MAX,
            waiting_tokens_max: WAITING_TOKENS_MAX,
            batch_floor_permille: BATCH_FLOOR_PERMILLE,
            bypass_max: BYPASS_MAX,
            seat_quantum_steps: SEAT_QUANTUM_STEPS,
        }
    }

    /// The same for a device on which a step of a few tokens takes as long as one of several hundred: prompts in large chunks,
    /// as many as the step has room for.
    pub fn for_accelerator(capacity: &Capacity) -> Self {
        let room = capacity.max_step_tokens.saturating_sub(capacity.max_seats);
        let chunk_tokens = room.min(ACCELERATOR_CHUNK_TOKENS) / capacity.block_tokens * capacity.block_tokens;
        Self {
            chunk_tokens,
            prefill_tokens_beside_decode_max: capacity.max_step_tokens,
            ..Self::for_capacity(capacity)
        }
    }

    /// # Errors
    /// [`ConfigError`] names the first dial that cannot work with this executor.
    pub fn validate(&self, capacity: &Capacity) -> Result<(), ConfigError> {
        let in_range = |dial, actual: u64, min: u64, max: u64| {
            if (min..=max).contains(&actual) {
                Ok(())
            } else {
                Err(ConfigError::OutOfRange { dial, actual, min, max })
            }
        };
        let chunk_tokens = u64::from(self.chunk_tokens);
        in_range("num_pages", u64::from(capacity.num_pages), 1, u64::from(u32::MAX - 1))?;
        in_range("block_tokens", u64::from(capacity.block_tokens), 1, 1 << 16)?;
        in_range("max_in_flight", u64::from(capacity.max_in_flight), 1, 2)?;
        in_range("num_layer_groups", u64::from(capacity.num_layer_groups), 1, 1)?;
        in_range("seats", u64::from(self.seats), 1, u64::from(capacity.max_seats))?;
        in_range("chunk_tokens", chunk_tokens, 1, u64::from(capacity.max_step_tokens))?;
        if !self.chunk_tokens.is_multiple_of(capacity.block_tokens) {
            return Err(ConfigError::UnalignedChunk {
                chunk_tokens: self.chunk_tokens,
                block_tokens: capacity.block_tokens,
            });
        }
        let step_tokens_min = u64::from(self.seats) + chunk_tokens;
        let step_tokens_max = u64::from(capacity.max_step_tokens);
        in_range("step_tokens_max", u64::from(self.step_tokens_max), step_tokens_min, step_tokens_max)?;
        let beside = u64::from(self.prefill_tokens_beside_decode_max);
        in_range("prefill_tokens_beside_decode_max", beside, chunk_tokens, u64::from(u32::MAX))?;
        in_range("seat_quantum_steps", u64::from(self.seat_quantum_steps), 1, u64::from(u32::MAX))?;
        in_range("batch_floor_permille", u64::from(self.batch_floor_permille), 0, 900)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Capacity = Capacity {
        num_pages: 100,
        page_bytes: 4096,
        layout: crate::executor::LayoutId(0),
        num_layer_groups: 1,
        num_host_pages: 0,
        block_tokens: 16,
        max_seats: 32,
        max_step_tokens: 256,
        max_in_flight: 1,
        context_limit: 2048,
        vocab_size: 1000,
    };

    #[test]
    fn defaults_fit() {
        assert_eq!(EngineConfig::for_capacity(&CAPACITY).validate(&CAPACITY), Ok(()));
        let accelerator = EngineConfig::for_accelerator(&CAPACITY);
        assert_eq!(accelerator.validate(&CAPACITY), Ok(()));
        assert_eq!((accelerator.chunk_tokens, accelerator.prefill_tokens_beside_decode_max), (224, 256));
        let small = Capacity { max_step_tokens: 50, ..CAPACITY };
        assert_eq!(
            EngineConfig::for_accelerator(&small).validate(&small),
            Ok(()),
            "18 are left beside decodes"
        );
    }

    #[test]
    fn each_bad_dial_is_named() {
        let good = EngineConfig::for_capacity(&CAPACITY);
        let bad_dial = |config: EngineConfig| match config.validate(&CAPACITY) {
            Err(ConfigError::OutOfRange { dial, .. }) => dial,
            Err(ConfigError::UnalignedChunk { .. }) => "unaligned",
            Ok(()) => "none",
        };
        assert_eq!(bad_dial(EngineConfig { seats: 0, ..good }), "seats");
        assert_eq!(bad_dial(EngineConfig { seats: 33, ..good }), "seats");
        assert_eq!(bad_dial(EngineConfig { chunk_tokens: 40, ..good }), "unaligned");
        assert_eq!(bad_dial(EngineConfig { step_tokens_max: 95, ..good }), "step_tokens_max");
        assert_eq!(bad_dial(EngineConfig { step_tokens_max: 257, ..good }), "step_tokens_max");
        assert_eq!(
            bad_dial(EngineConfig { prefill_tokens_beside_decode_max: 63, ..good }),
            "prefill_tokens_beside_decode_max"
        );
        assert_eq!(bad_dial(EngineConfig { batch_floor_permille: 901, ..good }), "batch_floor_permille");
    }
}
