//! Who is calling, and what they may do: tokens are verified by the same rules as at the gateway (signature, issuer,
//! audience, times, the allow-list, the subject), then turned into the proofs that `store` asks for.

mod caller;
mod signer;
mod token;

pub(crate) use caller::{Caller, KeysWrite, PlatformAdmin, TenantCaller, TenantReader, UsageCaller};
pub(crate) use signer::{Signer, SignerError};
