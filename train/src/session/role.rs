//! What part a replica has in its job.

use crate::election::LeaderStore;
use std::sync::Arc;

/// Who is the chief: the replica that initialises and restores variables, saves them, and does what a strategy asks of
/// one replica. Every replica can, since all have the same graph.
#[derive(Clone, Debug, Default)]
pub enum Role {
    /// This one, always. No other replica of the job may be told the same.
    #[default]
    Chief,
    /// Another one.
    Worker,
    /// The one that leads in this store. When it dies, another goes on; when it is back, it is a worker. No replica of
    /// such a job is told `Chief`: only what has an epoch ([`proto::Epoch`]) can be refused once it is over. One that is
    /// told `Worker` never leads.
    Elected(Arc<dyn LeaderStore>),
}

impl Role {
    /// The part of a replica in a job whose chief does not change.
    pub fn fixed(is_chief: bool) -> Role {
        if is_chief { Role::Chief } else { Role::Worker }
    }
}
