//! Price books and their effective-dated prices.

pub(crate) mod create;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod list_prices;
pub(crate) mod set_price;

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use serde::Serialize;
use utoipa::ToSchema;
use weir_domain::price_book::PriceBook;

use crate::store::price_books::{PriceBookRow, PriceRow};

/// A price book; its prices are a list of their own.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PriceBook)]
pub(crate) struct PriceBookView {
    /// Its id.
    #[schema(example = "prb_01jzc0ffee0000000000000000")]
    pub(crate) id: String,
    /// Its name; unique.
    pub(crate) name: String,
    /// ISO 4217 code.
    #[schema(example = "USD")]
    pub(crate) currency: String,
    /// When it was made.
    pub(crate) created_at: DateTime<Utc>,
}

impl From<&PriceBook> for PriceBookView {
    fn from(book: &PriceBook) -> Self {
        Self {
            id: book.id.to_string(),
            name: book.name.clone(),
            currency: book.currency.clone(),
            created_at: book.created_at,
        }
    }
}

impl From<PriceBookRow> for PriceBookView {
    fn from(row: PriceBookRow) -> Self {
        Self { id: row.price_book_id, name: row.name, currency: row.currency, created_at: row.created_at }
    }
}

/// A version's prices from a moment on, per million tokens, exact decimals.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Price)]
pub(crate) struct PriceView {
    /// Which version.
    pub(crate) version_id: String,
    /// From when; until the next price of the same version.
    pub(crate) effective_from: DateTime<Utc>,
    /// ISO 4217 code.
    pub(crate) currency: String,
    /// Prompt tokens that were computed.
    #[schema(value_type = String, example = "0.10")]
    pub(crate) prompt_per_million: Decimal,
    /// Prompt tokens taken from the prefix cache.
    #[schema(value_type = String, example = "0.05")]
    pub(crate) cached_prompt_per_million: Decimal,
    /// Generated tokens.
    #[schema(value_type = String, example = "0.40")]
    pub(crate) generated_per_million: Decimal,
}

impl From<PriceRow> for PriceView {
    fn from(row: PriceRow) -> Self {
        Self {
            version_id: row.version_id,
            effective_from: row.effective_from,
            currency: row.currency,
            prompt_per_million: row.prompt_per_million,
            cached_prompt_per_million: row.cached_prompt_per_million,
            generated_per_million: row.generated_per_million,
        }
    }
}
