//! The pricing pass: charges queued records for which a price exists now. At start, at an interval, and when asked.

use sqlx::PgPool;
use weir_schemas::clock::Clock;
use weir_schemas::records::{ChargeData, CloudEvent};

use crate::store::charges::{Arrival, Charge, Queued, count_unpriced, settle, take_priceable};

/// Records of one transaction.
const PASS_RECORDS: i64 = 500;

/// What a pricing pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Priced {
    /// Records charged now.
    pub charged: i64,
    /// Records that still wait for a price.
    pub waiting: i64,
}

/// Charges every queued record for which a price exists now.
pub async fn price_unpriced(pool: &PgPool, clock: &Clock) -> Result<Priced, sqlx::Error> {
    let mut charged = 0;
    loop {
        let mut transaction = pool.begin().await?;
        let queued = take_priceable(&mut transaction, PASS_RECORDS).await?;
        if queued.is_empty() {
            let waiting = count_unpriced(&mut transaction).await?;
            return Ok(Priced { charged, waiting });
        }
        let events: Vec<(&Queued, CloudEvent<ChargeData>)> = queued
            .iter()
            .map(|row| serde_json::from_str(&row.record).map(|event| (row, event)))
            .collect::<Result<_, _>>()
            .map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
        let charges: Vec<Charge<'_>> = events
            .iter()
            .map(|(row, event)| Charge {
                sender: &row.sender,
                sequence: row.sequence,
                event,
                record: &row.record,
                is_repeat: false,
            })
            .collect();
        let settled = settle(&mut transaction, &charges, Arrival::Queued, clock.now()).await?;
        transaction.commit().await?;
        charged += settled.charged;
        if settled.charged == 0 {
            // The prices were there a moment ago and are being rebuilt; the next pass finds them.
            return Ok(Priced { charged, waiting: settled.unpriced });
        }
    }
}
