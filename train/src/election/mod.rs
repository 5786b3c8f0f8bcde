//! Who of several is the chief: places where they agree on one, each time under a higher number.

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

/// Where replicas elect their chief. Each replica has a store of its own, all of which lead to one place.
///
/// A leader may be deposed without knowing it yet: when it was stopped, or cut off from the store. So each turn of a
/// leader has a *term*, a number higher than all before, which goes with what it asks of workers
/// ([`proto::Epoch`]): those that have seen a later one refuse.
pub trait LeaderStore: Send + Sync + fmt::Debug {
    /// What is led: the same for all who stand, and no other job's on the same cluster.
    fn name(&self) -> &str;

    /// A leader that was not heard of for so long may be replaced.
    fn lease(&self) -> Duration;

    /// Tries to lead, without waiting: gives the term, or `None` while another leads. Who leads already goes on under
    /// a new, higher term.
    fn campaign(&self) -> Result<Option<i64>>;

    /// Says that the leader of this term lives; to be called several times a lease. Whether it still leads.
    fn keep(&self, term: i64) -> Result<bool>;

    /// Lets others lead.
    fn resign(&self, term: i64) -> Result<()>;
}
