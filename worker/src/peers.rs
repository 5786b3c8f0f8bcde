//! The other tasks of a cluster, as peers to receive from and to send to.

use crate::transport::{Road, Roads};
use executor::rendezvous::RendezvousKey;
use graph::{DeviceName, TaskName};
use parking_lot::RwLock;
use proto::channel::Peer;
use proto::{Cluster, Status};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// The peers by device; the devices of a task share their peer.
#[derive(Debug)]
pub(crate) struct Peers {
    cluster: Cluster,
    connect_deadline: Duration,
    connections: usize,
    roads: Arc<Roads>,
    /// True if the cluster is the one that the process was started with.
    are_own: bool,
    by_device: RwLock<FxHashMap<Arc<str>, Known>>,
}

#[derive(Clone, Debug)]
struct Known {
    peer: Arc<Peer>,
    road: Arc<Road>,
}

impl Peers {
    pub(crate) fn new(
        cluster: Cluster,
        connect_deadline: Duration,
        connections: usize,
        roads: Arc<Roads>,
    ) -> Peers {
        Peers { cluster, connect_deadline, connections, roads, are_own: true, by_device: RwLock::default() }
    }

    /// Returns the peers of another cluster, with the same settings.
    pub(crate) fn of(&self, cluster: Cluster) -> Peers {
        let peers = Peers::new(cluster, self.connect_deadline, self.connections, self.roads.clone());
        Peers { are_own: false, ..peers }
    }

    /// Returns whether the cluster is the one that the process was started with, so that other processes know
    /// it too.
    pub(crate) fn are_own(&self) -> bool {
        self.are_own
    }

    /// Returns the task that sends under this key.
    ///
    /// # Errors
    /// `InvalidArgument` if the cluster has no such task.
    pub(crate) fn source_of(&self, key: &RendezvousKey) -> Result<Arc<Peer>, Status> {
        let unknown = |task: &TaskName| {
            Status::invalid(format!("{task}, which sends {}, is no task of the cluster", key.text))
        };
        self.with(&key.src_device, unknown, |known| known.peer.clone())
    }

    /// Returns the route to a device's task; `None` if the cluster has no such task.
    pub(crate) fn road_to(&self, device: &Arc<str>) -> Option<Arc<Road>> {
        let unknown = |task: &TaskName| Status::invalid(format!("{task} is no task of the cluster"));
        self.with(device, unknown, |known| known.road.clone()).ok()
    }

    /// Returns a property of the entry for a device's task, which is created at first.
    fn with<T>(
        &self,
        device: &Arc<str>,
        unknown: impl FnOnce(&TaskName) -> Status,
        get: impl Fn(&Known) -> T,
    ) -> Result<T, Status> {
        if let Some(known) = self.by_device.read().get(device) {
            return Ok(get(known));
        }
        let task = DeviceName::parse(device)?.task_name();
        let address = self.cluster.address(&task).ok_or_else(|| unknown(&task))?;
        let mut by_device = self.by_device.write();
        let known = by_device.values().find(|k| *k.peer.task() == task).cloned();
        let known = match known {
            Some(known) => known,
            None => {
                let peer = Peer::new(task, address, self.connect_deadline, self.connections)?;
                let peer = Arc::new(peer);
                Known { road: self.roads.road(&peer), peer }
            }
        };
        Ok(get(by_device.entry(device.clone()).or_insert(known)))
    }
}
