//! Elections of the chief: stores in which replicas agree on one leader at a time, where each new leader has a higher
//! term.

#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod calls;
#[cfg(feature = "etcd")]
mod etcd;
mod file;
#[cfg(feature = "kubernetes")]
mod kubernetes;

#[cfg(feature = "etcd")]
pub use etcd::EtcdStore;
pub use file::FileStore;
#[cfg(feature = "kubernetes")]
pub use kubernetes::{KubernetesStore, kube};

use crate::error::Result;
use std::fmt;
use std::time::Duration;

/// A store in which replicas elect their chief. Each replica has its own `LeaderStore`; all of them use the
/// same folder or server.
///
/// A leader that was stopped, or cut off from the store, may have been deposed without knowing it. Each
/// leadership therefore has a *term*, a number higher than all before. The leader sends its term to workers
/// with its requests ([`proto::Epoch`]), and workers that have received a later term refuse them.
pub trait LeaderStore: Send + Sync + fmt::Debug {
    /// Returns the name of the election: the same for all candidates, and different from other jobs on the
    /// same cluster.
    fn name(&self) -> &str;

    /// Returns the lease: the time after which a leader that has not renewed its term may be replaced.
    fn lease(&self) -> Duration;

    /// Tries to become the leader, without waiting. Returns the term, or `None` if another replica leads. A
    /// replica that leads already gets a new, higher term.
    fn campaign(&self) -> Result<Option<i64>>;

    /// Renews the lease of the leader of this term; to be called several times per lease. Returns whether
    /// that leader still leads.
    fn keep(&self, term: i64) -> Result<bool>;

    /// Ends the leadership of this term, so that another replica can lead.
    fn resign(&self, term: i64) -> Result<()>;
}
