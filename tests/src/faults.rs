//! Faults: load from many tenants through every real part, while each part is killed in turn; at the end every receipt of
//! the clients is held against the ledger.
//!
//! Start reading at [`scenario`]; what must hold is in [`books`].

pub mod books;
pub mod load;
pub mod random;
pub mod receipt;
pub mod scenario;
pub mod tampering;
