//! Tables `price_books`, `priced_versions` and `price_versions`; the ledger reads the last.

use sqlx::PgConnection;
use weir_domain::price_book::PriceBookEvent;

use super::{Place, StoreError};

pub(super) async fn apply(
    connection: &mut PgConnection,
    place: Place<'_>,
    event: &PriceBookEvent,
) -> Result<(), StoreError> {
    match event {
        PriceBookEvent::Created { id, name, currency, created_at } => {
            sqlx::query(
                "INSERT INTO price_books (price_book_id, version, name, currency, created_at)
                 VALUES ($1, $2, $3, $4, $5)",
            )
            .bind(id.to_string())
            .bind(place.version)
            .bind(name)
            .bind(currency)
            .bind(created_at)
            .execute(connection)
            .await?;
        }
        PriceBookEvent::PriceSet { version, effective_from, price } => {
            sqlx::query("UPDATE price_books SET version = $2 WHERE price_book_id = $1")
                .bind(place.stream)
                .bind(place.version)
                .execute(&mut *connection)
                .await?;
            // The first book to price a version owns it; another one then breaks `price_versions_one_book`.
            sqlx::query(
                "INSERT INTO priced_versions (version_id, price_book) VALUES ($1, $2)
                 ON CONFLICT (version_id) DO NOTHING",
            )
            .bind(version.to_string())
            .bind(place.stream)
            .execute(&mut *connection)
            .await?;
            sqlx::query(
                "INSERT INTO price_versions (position, price_book, version_id, effective_from, currency,
                 prompt_per_million, cached_prompt_per_million, generated_per_million)
                 SELECT $1, $2, $3, $4, currency, $5, $6, $7 FROM price_books WHERE price_book_id = $2",
            )
            .bind(place.position)
            .bind(place.stream)
            .bind(version.to_string())
            .bind(effective_from)
            .bind(price.prompt_per_million)
            .bind(price.cached_prompt_per_million)
            .bind(price.generated_per_million)
            .execute(connection)
            .await?;
        }
    }
    Ok(())
}
