//! The other tasks of a cluster, as those to receive from.

use executor::rendezvous::RendezvousKey;
use graph::DeviceName;
use parking_lot::RwLock;
use proto::channel::Peer;
use proto::{Cluster, Status};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// Connections by the device to receive from; a task's are shared by its devices.
#[derive(Debug)]
pub(crate) struct Peers {
    cluster: Cluster,
    connect_deadline: Duration,
    connections: usize,
    by_device: RwLock<FxHashMap<Arc<str>, Arc<Peer>>>,
}

impl Peers {
    pub(crate) fn new(cluster: Cluster, connect_deadline: Duration, connections: usize) -> Peers {
        Peers { cluster, connect_deadline, connections, by_device: RwLock::default() }
    }

    /// As these, of another cluster.
    pub(crate) fn of(&self, cluster: Cluster) -> Peers {
        Peers::new(cluster, self.connect_deadline, self.connections)
    }

    /// The task that sends under this key.
    ///
    /// # Errors
    /// `InvalidArgument` if the cluster has no such task.
    pub(crate) fn source_of(&self, key: &RendezvousKey) -> Result<Arc<Peer>, Status> {
        if let Some(peer) = self.by_device.read().get(&key.src_device) {
            return Ok(peer.clone());
        }
        let task = DeviceName::parse(&key.src_device)?.task_name();
        let address = self.cluster.address(&task).ok_or_else(|| {
            Status::invalid(format!("{task}, which sends {}, is no task of the cluster", key.text))
        })?;
        let mut by_device = self.by_device.write();
        let known = by_device.values().find(|p| *p.task() == task).cloned();
        let peer = match known {
            Some(peer) => peer,
            None => Arc::new(Peer::new(task, address, self.connect_deadline, self.connections)?),
        };
        Ok(by_device.entry(key.src_device.clone()).or_insert(peer).clone())
    }
}
