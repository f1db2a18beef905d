//! What a model needs of a device's memory beside its weights, and what would fit where it does not.

use super::CudaLoadError;

const BLOCK_TOKENS: usize = weir_kernels::kv::BLOCK_TOKENS;

/// What the pool must hold at least: one request of full length, and a block for each seat.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    pub(super) page_bytes: usize,
    pub(super) seats: usize,
    pub(super) context_limit: usize,
}

impl Needs {
    /// Pages of a request of full length.
    pub(super) fn longest(&self) -> usize {
        self.context_limit.div_ceil(BLOCK_TOKENS)
    }

    pub(super) fn least(&self) -> (usize, &'static str) {
        let longest = self.longest();
        if longest >= self.seats {
            (longest, "one request of full length")
        } else {
            (self.seats, "a block for each seat")
        }
    }

    pub(super) fn check(&self, allowed: u64, weights: u64) -> Result<(), CudaLoadError> {
        let (least, what) = self.least();
        let pages = (least as u64).saturating_mul(self.page_bytes as u64);
        let needed = pages.saturating_add(weights);
        if needed <= allowed {
            Ok(())
        } else {
            let would_fit = self.would_fit(allowed, weights);
            Err(CudaLoadError::DoesNotFit { allowed, needed, weights, pages, what, would_fit })
        }
    }

    /// What these bytes would hold beside the weights, for the operator.
    fn would_fit(&self, allowed: u64, weights: u64) -> String {
        let pages = allowed.saturating_sub(weights) / self.page_bytes as u64;
        let seats = self.seats as u64;
        if pages == 0 {
            let pages = seats.saturating_mul(self.page_bytes as u64);
            return format!("weights of at most {} bytes", allowed.saturating_sub(pages));
        }
        if pages < seats {
            return format!("{pages} seats with a context of {} tokens", pages * BLOCK_TOKENS as u64);
        }
        format!("a context of {} tokens", pages * BLOCK_TOKENS as u64)
    }

    /// Pages that these bytes hold.
    pub(super) fn pages(&self, bytes: u64) -> Result<u32, CudaLoadError> {
        self.check(bytes, 0)?;
        let num_pages = bytes / self.page_bytes as u64;
        Ok(u32::try_from(num_pages).unwrap_or(u32::MAX - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_fit_is_computed() {
        let needs = Needs { page_bytes: 1000, seats: 4, context_limit: 320 };
        let said = |outcome: Result<(), CudaLoadError>| match outcome {
            Err(CudaLoadError::DoesNotFit { would_fit, .. }) => would_fit,
            other => format!("{other:?}"),
        };
        assert_eq!(said(needs.check(30_000, 10_000)), "Ok(())");
        assert_eq!(said(needs.check(29_999, 10_000)), "a context of 304 tokens");
        assert_eq!(said(needs.check(12_500, 10_000)), "2 seats with a context of 32 tokens");
        assert_eq!(said(needs.check(9_000, 10_000)), "weights of at most 5000 bytes");
        assert!(matches!(needs.pages(20_000), Ok(20)));
        assert_eq!(said(needs.pages(7_000).map(drop)), "a context of 112 tokens");
    }
}
