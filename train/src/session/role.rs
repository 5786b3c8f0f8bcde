//! The role of a replica in its job: chief, worker, or candidate in an election.

use crate::election::LeaderStore;
use std::sync::Arc;

/// The rule that decides whether this replica is the chief: the replica that initialises, restores and saves variables,
/// and applies the gradients of a synchronous job. Every replica can be the chief, because all have the same graph.
#[derive(Clone, Debug, Default)]
pub enum Role {
    /// This replica is always the chief. No other replica of the job may have this role.
    #[default]
    Chief,
    /// Another replica is the chief.
    Worker,
    /// The chief is the replica that leads in this store. When the chief dies, another replica replaces it; a restarted
    /// chief is a worker. No replica of such a job may have the role `Chief`: workers can refuse outdated requests only
    /// if the requests carry an epoch ([`proto::Epoch`]). A replica with the role `Worker` never leads.
    Elected(Arc<dyn LeaderStore>),
}

impl Role {
    /// Returns the role of a replica in a job without elections.
    pub fn fixed(is_chief: bool) -> Role {
        if is_chief { Role::Chief } else { Role::Worker }
    }
}
