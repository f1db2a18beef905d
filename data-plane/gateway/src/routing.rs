//! Stage 6, route: which replica, and the wire to it. One [`link::Link`] a worker carries one Session stream for all
//! of this gateway's sequences there and one Watch stream of load reports; [`registry::Registry`] keeps the links in
//! step with the config and chooses. Nothing here knows tenants' limits, charges or HTTP.

mod expected_ttft;
mod link;
mod mailbox;
mod registry;
mod unreported;

pub(crate) use expected_ttft::{Expected, num_waiting};
pub(crate) use link::{Link, LinkOptions};
pub(crate) use mailbox::{Arrivals, End, Mailbox, Taken};
pub(crate) use registry::{Chosen, NoReplica, Registry, Wanted};
