//! A deployment at five times what it can serve, under each policy: whether the policy does what it says, whether those who
//! are admitted get what they were promised, and whether the platform gives as much as when it is just full.
//!
//! Start reading at [`scenario`]; what is held of a run is in [`judge`].

pub mod judge;
pub mod load;
pub mod scenario;
