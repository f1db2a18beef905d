//! Usage and costs, in the shape of OpenAI's organization endpoints.

pub(crate) mod buckets;
pub(crate) mod costs;
pub(crate) mod query;
pub(crate) mod requests;
