//! How much KV memory there is, in the units that people ask about.

use std::fmt;

use weir_kernels::kv::{KvType, PageLayout, PagePool};

use crate::model::{LoadError, ModelFacts};

/// Positions of a page.
#[expect(clippy::cast_possible_truncation, reason = "sixteen")]
pub(super) const BLOCK_TOKENS: u32 = weir_kernels::kv::BLOCK_TOKENS as u32;

/// The pool's size as allocated, beside what the usual formula promises for the same budget.
#[derive(Clone, Debug, PartialEq)]
pub struct KvCapacity {
    /// Pages in the pool.
    pub num_pages: u32,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Tokens that the pool holds: whole pages only.
    pub tokens: u64,
    /// `budget / (2 · layers · KV heads · head components · bytes of an element)`.
    pub formula_tokens: u64,
    /// Most sequences at once.
    pub seats: u32,
    /// How many requests of the full context length fit side by side.
    pub longest_request_fits: f64,
    layout: PageLayout,
}

impl KvCapacity {
    /// Divides a budget into pages.
    ///
    /// # Errors
    /// [`LoadError::KvBudget`] if one request of full length, or a block for each seat, does not fit.
    pub(super) fn new(
        facts: &ModelFacts,
        kv_type: KvType,
        kv_bytes: u64,
        seats: u32,
        context_limit: u32,
    ) -> Result<Self, LoadError> {
        let layout = PageLayout {
            num_layers: facts.num_layers,
            num_kv_heads: facts.num_kv_heads,
            head_dim: facts.head_dim,
            kv_type,
        };
        let too_large = || kernels("page sizes overflow".to_owned());
        let page_bytes = layout.page_bytes().ok_or_else(too_large)? as u64;
        let elements =
            (2 * facts.num_layers as u64).checked_mul(facts.kv_dim() as u64).ok_or_else(too_large)?;
        let token_bytes =
            elements.checked_mul(kv_type.bytes() as u64).filter(|b| *b > 0).ok_or_else(too_large)?;
        let num_pages = kv_bytes / page_bytes;
        let longest_pages = u64::from(context_limit.div_ceil(BLOCK_TOKENS));
        for (what, needed_pages) in
            [("one request of full length", longest_pages), ("a block for each seat", u64::from(seats))]
        {
            if num_pages < needed_pages {
                let needed_bytes = needed_pages.saturating_mul(page_bytes);
                return Err(LoadError::KvBudget {
                    kv_bytes,
                    num_pages,
                    page_bytes,
                    what,
                    needed_pages,
                    needed_bytes,
                });
            }
        }
        let num_pages = u32::try_from(num_pages).unwrap_or(u32::MAX);
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let longest_request_fits = f64::from(num_pages) / longest_pages as f64;
        Ok(Self {
            num_pages,
            page_bytes,
            tokens: u64::from(num_pages) * u64::from(BLOCK_TOKENS),
            formula_tokens: kv_bytes / token_bytes,
            seats,
            longest_request_fits,
            layout,
        })
    }

    /// Allocates the pages, the host's after the pool's, and touches every one, so that a machine which cannot give the memory says so now and not
    /// in the middle of someone's answer.
    pub(super) fn allocate(&self, num_host_pages: u32) -> Result<PagePool, LoadError> {
        let num_pages = self
            .num_pages
            .checked_add(num_host_pages)
            .ok_or_else(|| kernels("more pages than page ids".to_owned()))?;
        let mut pool =
            PagePool::new(self.layout, num_pages as usize).map_err(|error| kernels(error.to_string()))?;
        for page in 0..num_pages {
            pool.page_mut(page).fill(0);
        }
        Ok(pool)
    }
}

impl fmt::Display for KvCapacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "KV cache size: {} tokens; {} seats; longest request fits {:.1} times (formula's estimate: {} tokens)",
            self.tokens, self.seats, self.longest_request_fits, self.formula_tokens
        )
    }
}

fn kernels(reason: String) -> LoadError {
    LoadError::Kernels { what: "the KV page layout".to_owned(), reason }
}
