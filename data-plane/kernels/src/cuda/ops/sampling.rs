//! Sampling: what the device keeps for each seat, and how the next tokens are chosen from logits.

use std::ops::Range;

use super::{Operations, StepInputs};
use crate::cuda::launch::Kernel;
use crate::cuda::{CudaError, Device, DeviceBuffer, PinnedBuffer};

/// Most tokens of a logit bias.
pub const BIAS_MAX: usize = 1024;
/// Most alternatives whose log-probabilities can be asked for.
pub const TOP_LOGPROBS_MAX: usize = 20;
/// Log-probabilities of a sample: the chosen token's, then the alternatives'.
const LOGPROBS: usize = 1 + TOP_LOGPROBS_MAX;
/// Numbers of a sample in the step's data.
const SAMPLE_INTS: usize = 4;

/// How a seat's tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeatParameters {
    /// Of the noise.
    pub seed: u64,
    /// 1 / temperature; 0 for the highest logit.
    pub inverse_temperature: f32,
    /// 1 keeps all.
    pub top_p: f32,
    /// Lowest logit below the highest, after temperature: the natural logarithm of min-p, negative infinity to keep all.
    pub min_score: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// Divides positive logits of tokens seen, multiplies others; 1 for none.
    pub repetition_penalty: f32,
    /// Taken from a logit for each time its token was generated.
    pub frequency_penalty: f32,
    /// Taken once from the logit of a token that was generated.
    pub presence_penalty: f32,
    /// Where the seat's tokens are counted, for penalties; `None` if there are none.
    pub count_slot: Option<usize>,
    /// Alternatives whose log-probabilities are wanted beside the chosen token's; `None` if none are, not even its.
    pub top_logprobs: Option<usize>,
}

/// Words of a seat's parameters, as kernels read them.
const PARAMETER_WORDS: usize = 12;

impl SeatParameters {
    fn words(&self, num_bias: usize) -> [u32; PARAMETER_WORDS] {
        let index = |value: Option<usize>| {
            value.map_or(u32::MAX, |value| u32::try_from(value).expect("an index far below 2^32"))
        };
        let seed = self.seed.to_le_bytes();
        [
            u32::from_le_bytes([seed[0], seed[1], seed[2], seed[3]]),
            u32::from_le_bytes([seed[4], seed[5], seed[6], seed[7]]),
            self.inverse_temperature.to_bits(),
            self.top_p.to_bits(),
            self.min_score.to_bits(),
            // Beyond every vocabulary is beyond every vocabulary.
            self.top_k.min(i32::MAX.unsigned_abs()),
            self.repetition_penalty.to_bits(),
            self.frequency_penalty.to_bits(),
            self.presence_penalty.to_bits(),
            index(self.count_slot),
            index(Some(num_bias)),
            index(self.top_logprobs),
        ]
    }
}

/// What the device keeps for seats and samples, and what sampling leaves.
#[derive(Debug)]
pub struct SeatTables {
    vocab_size: usize,
    num_seats: usize,
    /// `[seats, PARAMETER_WORDS]`.
    parameters: DeviceBuffer<u32>,
    /// `[seats, BIAS_MAX]` tokens.
    bias_tokens: DeviceBuffer<u32>,
    /// `[seats, BIAS_MAX]` floats.
    bias_values: DeviceBuffer<u32>,
    /// `[slots, vocab_size]`: 0 for a token not seen, else 1 + how often it was generated.
    counts: DeviceBuffer<u32>,
    /// Prompt and answer of the seat that is being set.
    history: DeviceBuffer<u32>,
    last_token: DeviceBuffer<i32>,
    /// `[rows, vocab_size / 32, rounded up]`: a set bit allows.
    masks: DeviceBuffer<u32>,
    /// `[rows, vocab_size]`.
    adjusted: DeviceBuffer<f32>,
    sampled: DeviceBuffer<i32>,
    logprobs: DeviceBuffer<f32>,
    top_tokens: DeviceBuffer<i32>,
    seat_staging: Vec<PinnedBuffer<u32>>,
    history_staging: Vec<PinnedBuffer<u32>>,
    mask_staging: Vec<PinnedBuffer<u32>>,
    next_masks: usize,
}

impl SeatTables {
    /// Allocates for `count_slots` seats with penalties at a time, whose histories have at most `max_history` tokens, and for
    /// the masks of at most `in_flight` steps under way.
    ///
    /// # Errors
    /// [`CudaError::Memory`] or [`CudaError::Driver`].
    pub fn new(
        device: &Device,
        vocab_size: usize,
        (num_seats, num_rows): (usize, usize),
        (count_slots, max_history): (usize, usize),
        in_flight: usize,
    ) -> Result<Self, CudaError> {
        let mask_words = num_rows * vocab_size.div_ceil(32);
        let pinned =
            |count: usize, len| (0..count).map(|_| device.pinned(len)).collect::<Result<Vec<_>, _>>();
        Ok(Self {
            vocab_size,
            num_seats,
            parameters: device.zeros(num_seats * PARAMETER_WORDS)?,
            bias_tokens: device.zeros(num_seats * BIAS_MAX)?,
            bias_values: device.zeros(num_seats * BIAS_MAX)?,
            counts: device.zeros(count_slots.saturating_mul(vocab_size))?,
            history: device.zeros(max_history)?,
            last_token: device.zeros(num_seats)?,
            masks: device.zeros(mask_words)?,
            adjusted: device.zeros(num_rows.saturating_mul(vocab_size))?,
            sampled: device.zeros(num_rows)?,
            logprobs: device.zeros(num_rows * LOGPROBS)?,
            top_tokens: device.zeros(num_rows * TOP_LOGPROBS_MAX)?,
            seat_staging: pinned(num_seats, PARAMETER_WORDS + 2 * BIAS_MAX)?,
            history_staging: pinned(count_slots, max_history)?,
            mask_staging: pinned(in_flight, mask_words)?,
            next_masks: 0,
        })
    }

    /// The tokens that seats sampled last, `[seats]`: what [`Operations::embed`] reads.
    pub fn last_token(&self) -> &DeviceBuffer<i32> {
        &self.last_token
    }

    /// The tokens of the last [`Operations::sample`], `[rows]`: −1 where none could be chosen.
    pub fn sampled(&self) -> &DeviceBuffer<i32> {
        &self.sampled
    }

    /// Log-probabilities of the last [`Operations::logprobs`], `[rows, 21]`: the chosen token's, then its alternatives', and these
    /// alternatives, `[rows, 20]`. Only what the seats ask for has a meaning.
    pub fn logprobs(&self) -> (&DeviceBuffer<f32>, &DeviceBuffer<i32>) {
        (&self.logprobs, &self.top_tokens)
    }

    /// Submits the masks of a step: `[masks][vocab_size / 32, rounded up]`, a set bit allows; missing words allow nothing.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn set_masks(&mut self, device: &Device, masks: &[&[u32]]) -> Result<(), CudaError> {
        let words = self.vocab_size.div_ceil(32);
        if masks.is_empty() {
            return Ok(());
        }
        let staging = &mut self.mask_staging[self.next_masks];
        let elements = staging.elements()?;
        assert!(masks.len() * words <= elements.len(), "a mask for each row at most");
        for (out, mask) in elements.chunks_exact_mut(words).zip(masks) {
            let given = mask.len().min(words);
            out[..given].copy_from_slice(&mask[..given]);
            out[given..].fill(0);
        }
        device.upload(staging, masks.len() * words, &mut self.masks)?;
        self.next_masks = (self.next_masks + 1) % self.mask_staging.len();
        Ok(())
    }
}

const ADJUSTED_BLOCK: usize = 256;
/// Tokens of a block that adjusts logits.
const ADJUSTED_TOKENS: usize = 1024;
const SAMPLING_BLOCK: usize = 1024;

#[derive(Debug)]
pub(super) struct Kernels {
    count_tokens: Kernel,
    adjust_logits: Kernel,
    sample_tokens: Kernel,
    token_logprobs: Kernel,
}

impl Kernels {
    pub(super) fn load(device: &Device) -> Result<Self, CudaError> {
        let kernel = |name| Kernel::load(device, name, 0);
        Ok(Self {
            count_tokens: kernel("count_tokens")?,
            adjust_logits: kernel("adjust_logits")?,
            sample_tokens: kernel("sample_tokens")?,
            token_logprobs: kernel("token_logprobs")?,
        })
    }
}

impl Operations {
    /// Gives a seat its parameters: the bias of distinct tokens, and (with a count slot) the tokens so far, of which the first
    /// `prompt_tokens` are prompt. Not while the step that set the seat before is under way.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn set_seat(
        &self,
        tables: &mut SeatTables,
        seat: usize,
        parameters: &SeatParameters,
        bias: &[(u32, f32)],
        (history, prompt_tokens): (&[u32], usize),
    ) -> Result<(), CudaError> {
        assert!(seat < tables.num_seats && bias.len() <= BIAS_MAX, "a seat that exists, a bias that fits");
        assert!(parameters.top_logprobs.is_none_or(|top| top <= TOP_LOGPROBS_MAX), "as many as are kept");
        let staging = &mut tables.seat_staging[seat];
        let words = staging.elements()?;
        words[..PARAMETER_WORDS].copy_from_slice(&parameters.words(bias.len()));
        for (i, &(token, value)) in bias.iter().enumerate() {
            words[PARAMETER_WORDS + i] = token;
            words[PARAMETER_WORDS + BIAS_MAX + i] = value.to_bits();
        }
        let device = &self.device;
        device.upload_range(staging, 0, PARAMETER_WORDS, &mut tables.parameters, seat * PARAMETER_WORDS)?;
        if !bias.is_empty() {
            let (tokens, values) = (PARAMETER_WORDS, PARAMETER_WORDS + BIAS_MAX);
            device.upload_range(staging, tokens, bias.len(), &mut tables.bias_tokens, seat * BIAS_MAX)?;
            device.upload_range(staging, values, bias.len(), &mut tables.bias_values, seat * BIAS_MAX)?;
        }
        parameters.count_slot.map_or(Ok(()), |slot| self.count_history(tables, slot, history, prompt_tokens))
    }

    fn count_history(
        &self,
        tables: &mut SeatTables,
        slot: usize,
        history: &[u32],
        prompt_tokens: usize,
    ) -> Result<(), CudaError> {
        let vocab_size = tables.vocab_size;
        let staging = &mut tables.history_staging[slot];
        assert!(history.iter().all(|token| (*token as usize) < vocab_size), "tokens of the vocabulary");
        assert!(prompt_tokens <= history.len() && history.len() <= staging.len(), "a history that fits");
        staging.elements()?[..history.len()].copy_from_slice(history);
        self.device.upload(staging, history.len(), &mut tables.history)?;
        let launch =
            self.launch(&self.sampling.count_tokens).writes(&mut tables.counts).reads(&tables.history);
        let launch = launch.int(slot).int(prompt_tokens).int(history.len()).int(vocab_size);
        // SAFETY: the arguments of `count_tokens`; slot and tokens were checked.
        unsafe { launch.submit((1, 1), SAMPLING_BLOCK) }
    }

    /// Chooses a token for some of the step's samples from their logits, `[all samples, vocab_size]`: penalties, bias, mask,
    /// then temperature, top-k, top-p, min-p and noise, as the engine's sampler has it. The seats remember theirs.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn sample(
        &self,
        logits: &DeviceBuffer<f32>,
        step: &StepInputs,
        which: Range<usize>,
        tables: &mut SeatTables,
    ) -> Result<(), CudaError> {
        let vocab_size = check_samples(logits, step, &which, tables);
        if which.is_empty() {
            return Ok(());
        }
        let (first, num_samples) = (which.start, which.len());
        let samples = step.layout().samples + SAMPLE_INTS * first;
        let launch = self.launch(&self.sampling.adjust_logits);
        let launch =
            launch.reads_from(&tables.adjusted, first * vocab_size).reads_from(logits, first * vocab_size);
        let launch =
            launch.reads_from(step.device(), samples).reads(&tables.parameters).reads(&tables.counts);
        let launch = launch.reads(&tables.bias_tokens).reads(&tables.bias_values).reads(&tables.masks);
        let blocks = vocab_size.div_ceil(ADJUSTED_TOKENS);
        // SAFETY: the arguments of `adjust_logits`; lengths were checked, seats and masks when they were written.
        unsafe { launch.int(vocab_size).submit((blocks, num_samples), ADJUSTED_BLOCK)? };
        let launch = self.launch(&self.sampling.sample_tokens).reads_from(&tables.sampled, first);
        let launch = launch.writes(&mut tables.last_token).writes(&mut tables.counts);
        let launch = launch.reads_from(logits, first * vocab_size);
        let launch =
            launch.reads_from(&tables.adjusted, first * vocab_size).reads_from(step.device(), samples);
        // SAFETY: the arguments of `sample_tokens`; as above.
        unsafe { launch.reads(&tables.parameters).int(vocab_size).submit((num_samples, 1), SAMPLING_BLOCK) }
    }

    /// Log-probabilities under the model's own logits of the tokens just sampled, and of the likeliest, for the seats that ask.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn logprobs(
        &self,
        logits: &DeviceBuffer<f32>,
        step: &StepInputs,
        which: Range<usize>,
        tables: &mut SeatTables,
    ) -> Result<(), CudaError> {
        let vocab_size = check_samples(logits, step, &which, tables);
        if which.is_empty() {
            return Ok(());
        }
        let (first, num_samples) = (which.start, which.len());
        let launch =
            self.launch(&self.sampling.token_logprobs).reads_from(&tables.logprobs, first * LOGPROBS);
        let launch = launch.reads_from(&tables.top_tokens, first * TOP_LOGPROBS_MAX);
        let launch = launch.reads_from(logits, first * vocab_size).reads_from(&tables.sampled, first);
        let samples = step.layout().samples + SAMPLE_INTS * first;
        let launch = launch.reads_from(step.device(), samples).reads(&tables.parameters);
        // SAFETY: the arguments of `token_logprobs`; lengths were checked, seats when they were written.
        unsafe { launch.int(vocab_size).submit((num_samples, 1), SAMPLING_BLOCK) }
    }
}

fn check_samples(
    logits: &DeviceBuffer<f32>,
    step: &StepInputs,
    which: &Range<usize>,
    tables: &SeatTables,
) -> usize {
    let limits = step.limits();
    let num_samples = which.end;
    assert!(
        which.start <= which.end && num_samples <= limits.rows && limits.rows <= tables.sampled.len(),
        "samples of the step"
    );
    assert!(limits.seats <= tables.num_seats, "parameters for each seat");
    assert!(logits.len() >= num_samples * tables.vocab_size, "logits for each sample");
    tables.vocab_size
}
