//! Reads of `price_books` and `price_versions`.

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use sqlx::FromRow;
use weir_schemas::ids::{PriceBookId, VersionId};

use super::Store;
use super::error::StoreError;
use super::page::PageRequest;
use crate::scope::PlatformScope;

/// A price book without its prices.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct PriceBookRow {
    pub(crate) price_book_id: String,
    pub(crate) name: String,
    pub(crate) currency: String,
    pub(crate) created_at: DateTime<Utc>,
}

/// A version's prices from a moment on.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct PriceRow {
    pub(crate) position: i64,
    pub(crate) version_id: String,
    pub(crate) effective_from: DateTime<Utc>,
    pub(crate) currency: String,
    pub(crate) prompt_per_million: Decimal,
    pub(crate) cached_prompt_per_million: Decimal,
    pub(crate) generated_per_million: Decimal,
}

impl Store {
    /// A page of price books, and one row more if there are more.
    pub(crate) async fn price_books(
        &self,
        scope: PlatformScope,
        page: &PageRequest,
    ) -> Result<Vec<PriceBookRow>, StoreError> {
        let mut transaction = self.read(scope).await?;
        let rows = sqlx::query_as(
            "SELECT price_book_id, name, currency, created_at FROM price_books
             WHERE ($1::text IS NULL OR price_book_id > $1) ORDER BY price_book_id LIMIT $2",
        )
        .bind(&page.after)
        .bind(page.rows())
        .fetch_all(&mut *transaction)
        .await?;
        Ok(rows)
    }

    /// Prices of a book in the order they were set, after a position, of one version or of all.
    pub(crate) async fn prices(
        &self,
        scope: PlatformScope,
        book: PriceBookId,
        version: Option<VersionId>,
        after: i64,
        limit: i64,
    ) -> Result<Vec<PriceRow>, StoreError> {
        let mut transaction = self.read(scope).await?;
        let rows = sqlx::query_as(
            "SELECT position, version_id, effective_from, currency, prompt_per_million,
             cached_prompt_per_million, generated_per_million FROM price_versions
             WHERE price_book = $1 AND ($2::text IS NULL OR version_id = $2) AND position > $3
             ORDER BY position LIMIT $4",
        )
        .bind(book.to_string())
        .bind(version.map(|version| version.to_string()))
        .bind(after)
        .bind(limit)
        .fetch_all(&mut *transaction)
        .await?;
        Ok(rows)
    }
}
