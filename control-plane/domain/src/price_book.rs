//! PriceBook: effective-dated prices per pinned version and kind of token, in one currency, exact decimals.
//!
//! A price may be set for a moment before now only while the version has no price yet (so that requests recorded
//! before anyone set one can be charged); later, what was charged stands. Of two prices with one `effective_from`,
//! the one set later holds.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use weir_schemas::ids::{PriceBookId, VersionId};

use crate::aggregate::{Aggregate, existing, vacant};
use crate::refusal::{Refusal, Rule, invalid};
use crate::validate::{self, ensure};

/// Digits after the point that a price may have; a charge then has at most six more.
const PRICE_SCALE_MAX: u32 = 12;
const PRICE_MAX: Decimal = Decimal::from_parts(1_000_000_000, 0, 0, false, 0);

/// Prices per million tokens of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    /// Prompt tokens that were computed.
    pub prompt_per_million: Decimal,
    /// Prompt tokens taken from the prefix cache.
    pub cached_prompt_per_million: Decimal,
    /// Generated tokens.
    pub generated_per_million: Decimal,
}

/// The state of a price book.
#[derive(Debug, Clone, PartialEq)]
pub struct PriceBook {
    /// Its id.
    pub id: PriceBookId,
    /// For people; unique.
    pub name: String,
    /// ISO 4217 code.
    pub currency: String,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// The prices of each version by the moment from which they hold.
    pub prices: BTreeMap<VersionId, BTreeMap<DateTime<Utc>, Price>>,
}

/// What happened to a price book.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum PriceBookEvent {
    /// It was made.
    #[serde(rename = "price_book.created.v1")]
    Created {
        /// Its id.
        id: PriceBookId,
        /// Its name.
        name: String,
        /// Its currency.
        currency: String,
        /// When.
        created_at: DateTime<Utc>,
    },
    /// A version's prices from a moment on.
    #[serde(rename = "price_book.price_set.v1")]
    PriceSet {
        /// Which version.
        version: VersionId,
        /// From when.
        effective_from: DateTime<Utc>,
        /// How much.
        price: Price,
    },
}

/// What may be asked of a price book.
#[derive(Debug, Clone, PartialEq)]
pub enum PriceBookCommand {
    /// Make it.
    Create {
        /// A fresh id.
        id: PriceBookId,
        /// Its name.
        name: String,
        /// Its currency.
        currency: String,
        /// The time.
        now: DateTime<Utc>,
    },
    /// Set a version's prices from a moment on.
    SetPrice {
        /// Which version.
        version: VersionId,
        /// From when; see the module on moments before `now`.
        effective_from: DateTime<Utc>,
        /// How much.
        price: Price,
        /// The time.
        now: DateTime<Utc>,
    },
}

impl Aggregate for PriceBook {
    type Id = PriceBookId;
    type Command = PriceBookCommand;
    type Event = PriceBookEvent;
    const NOUN: &'static str = "price book";

    fn decide(current: Option<&Self>, command: PriceBookCommand) -> Result<Vec<PriceBookEvent>, Refusal> {
        match command {
            PriceBookCommand::Create { id, name, currency, now } => {
                vacant(current)?;
                validate::text("name", &name)?;
                let code = currency.len() == 3 && currency.bytes().all(|byte| byte.is_ascii_uppercase());
                ensure(code, "currency", Rule::Currency)?;
                Ok(vec![PriceBookEvent::Created { id, name, currency, created_at: now }])
            }
            PriceBookCommand::SetPrice { version, effective_from, price, now } => {
                let book = existing(current)?;
                price.check()?;
                if effective_from < now && book.prices.contains_key(&version) {
                    return Err(Refusal::RetroactivePrice { now });
                }
                Ok(vec![PriceBookEvent::PriceSet { version, effective_from, price }])
            }
        }
    }

    fn evolve(current: Option<Self>, event: &PriceBookEvent) -> Option<Self> {
        match event {
            PriceBookEvent::Created { id, name, currency, created_at } => Some(Self {
                id: *id,
                name: name.clone(),
                currency: currency.clone(),
                created_at: *created_at,
                prices: BTreeMap::new(),
            }),
            PriceBookEvent::PriceSet { version, effective_from, price } => {
                let mut book = current?;
                book.prices.entry(*version).or_default().insert(*effective_from, *price);
                Some(book)
            }
        }
    }
}

impl PriceBook {
    /// The price of `version` in force at `moment`.
    pub fn price_at(&self, version: VersionId, moment: DateTime<Utc>) -> Option<Price> {
        self.prices.get(&version)?.range(..=moment).next_back().map(|(_, price)| *price)
    }
}

impl Price {
    fn check(&self) -> Result<(), Refusal> {
        for (field, value) in [
            ("prompt_per_million", self.prompt_per_million),
            ("cached_prompt_per_million", self.cached_prompt_per_million),
            ("generated_per_million", self.generated_per_million),
        ] {
            let good = !value.is_sign_negative() && value <= PRICE_MAX && value.scale() <= PRICE_SCALE_MAX;
            if !good {
                return Err(invalid(field, Rule::Price));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::check;

    const VERSION: VersionId = VersionId::from_u128(2);

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    fn created() -> PriceBookEvent {
        PriceBookEvent::Created {
            id: PriceBookId::from_u128(1),
            name: "list".into(),
            currency: "USD".into(),
            created_at: at(0),
        }
    }

    fn price(prompt: &str) -> Price {
        Price {
            prompt_per_million: prompt.parse().unwrap(),
            cached_prompt_per_million: "0.05".parse().unwrap(),
            generated_per_million: "0.4".parse().unwrap(),
        }
    }

    fn set(effective_from: i64, prompt: &str) -> PriceBookEvent {
        PriceBookEvent::PriceSet {
            version: VERSION,
            effective_from: at(effective_from),
            price: price(prompt),
        }
    }

    fn ask(effective_from: i64, prompt: &str, now: i64) -> PriceBookCommand {
        PriceBookCommand::SetPrice {
            version: VERSION,
            effective_from: at(effective_from),
            price: price(prompt),
            now: at(now),
        }
    }

    #[test]
    fn only_a_first_price_may_reach_into_the_past() {
        check::<PriceBook>(&[created()], ask(5, "0.1", 100), Ok(vec![set(5, "0.1")]));
        let given = [created(), set(5, "0.1")];
        check::<PriceBook>(&given, ask(99, "0.2", 100), Err(Refusal::RetroactivePrice { now: at(100) }));
        check::<PriceBook>(&given, ask(100, "0.2", 100), Ok(vec![set(100, "0.2")]));
    }

    #[test]
    fn the_price_in_force_is_the_latest_that_has_begun() {
        let book = PriceBook::replay(&[created(), set(10, "1"), set(20, "2"), set(20, "3")]).unwrap();
        let prompt =
            |moment| book.price_at(VERSION, at(moment)).map(|price| price.prompt_per_million.to_string());
        assert_eq!(prompt(9), None);
        assert_eq!(prompt(10), Some("1".into()));
        assert_eq!(prompt(19), Some("1".into()));
        assert_eq!(prompt(20), Some("3".into()));
        assert_eq!(book.price_at(VersionId::from_u128(3), at(20)), None);
    }

    #[test]
    fn amounts_and_currencies_are_checked() {
        for bad in ["-0.1", "1000000001", "0.0000000000001"] {
            let refused = invalid("prompt_per_million", Rule::Price);
            check::<PriceBook>(&[created()], ask(5, bad, 1), Err(refused));
        }
        let create = PriceBookCommand::Create {
            id: PriceBookId::from_u128(1),
            name: "list".into(),
            currency: "usd".into(),
            now: at(0),
        };
        check::<PriceBook>(&[], create, Err(invalid("currency", Rule::Currency)));
    }
}
