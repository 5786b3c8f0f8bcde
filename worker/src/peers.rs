//! The other tasks of a cluster, as peers to receive from and to send to.

use crate::transport::{LinkTable, Route};
use device::rendezvous::RendezvousKey;
use graph::{DeviceName, TaskName};
use parking_lot::RwLock;
use proto::channel::Peer;
use proto::{Cluster, Status};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// The other tasks of a session's cluster, by the names of their devices; the devices of a task share one
/// entry.
#[derive(Debug)]
pub(crate) struct Peers {
    cluster: Cluster,
    connect_deadline: Duration,
    connections: usize,
    link_table: Arc<LinkTable>,
    /// True if the cluster is the one that the process was started with.
    is_own_cluster: bool,
    by_device: RwLock<FxHashMap<Arc<str>, PeerEntry>>,
}

#[derive(Clone, Debug)]
struct PeerEntry {
    peer: Arc<Peer>,
    route: Arc<Route>,
}

impl Peers {
    pub(crate) fn new(
        cluster: Cluster,
        connect_deadline: Duration,
        connections: usize,
        link_table: Arc<LinkTable>,
    ) -> Peers {
        Peers {
            cluster,
            connect_deadline,
            connections,
            link_table,
            is_own_cluster: true,
            by_device: RwLock::default(),
        }
    }

    /// Makes the peers of another cluster, with the timeouts and links of `self`.
    pub(crate) fn for_cluster(&self, cluster: Cluster) -> Peers {
        let peers = Peers::new(cluster, self.connect_deadline, self.connections, self.link_table.clone());
        Peers { is_own_cluster: false, ..peers }
    }

    /// Returns whether the cluster spec is the one that this process was started with; the other processes then use the
    /// same task names.
    pub(crate) fn is_own_cluster(&self) -> bool {
        self.is_own_cluster
    }

    /// Returns the task whose device sends the values of this rendezvous key.
    ///
    /// # Errors
    /// `InvalidArgument` if the cluster has no such task.
    pub(crate) fn source_of(&self, key: &RendezvousKey) -> Result<Arc<Peer>, Status> {
        let unknown = |task: &TaskName| {
            Status::invalid(format!("{task}, which sends {}, is no task of the cluster", key.text))
        };
        self.with_entry(&key.src_device, unknown, |entry| entry.peer.clone())
    }

    /// Returns the task that leads the groups of collectives: the requested task, or task 0 of the job `chief`, else of
    /// the job `worker`, else of the first job. `None` if the cluster has no tasks.
    pub(crate) fn leader(&self, requested: Option<&TaskName>) -> Option<TaskName> {
        let has = |job: &&str| self.cluster.jobs().any(|known| known == *job);
        let job = ["chief", "worker"].into_iter().find(has).or_else(|| self.cluster.jobs().next());
        requested.cloned().or_else(|| job.map(|job| TaskName::new(job, 0)))
    }

    /// Returns the names of all tasks of the cluster.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = TaskName> {
        self.cluster.tasks().map(|(task, _)| task)
    }

    /// Returns another task of the cluster.
    ///
    /// # Errors
    /// `InvalidArgument` if the cluster has no such task.
    pub(crate) fn task(&self, task: &TaskName) -> Result<Arc<Peer>, Status> {
        let unknown = |task: &TaskName| {
            Status::invalid(format!(
                "{task}, which is to lead or join a group of collectives, is no task of the cluster"
            ))
        };
        self.with_entry(&format!("{task}/device:CPU:0").into(), unknown, |entry| entry.peer.clone())
    }

    /// Returns the route to a device's task; `None` if the cluster has no such task.
    pub(crate) fn route_to(&self, device: &Arc<str>) -> Option<Arc<Route>> {
        let unknown = |task: &TaskName| Status::invalid(format!("{task} is no task of the cluster"));
        self.with_entry(device, unknown, |entry| entry.route.clone()).ok()
    }

    /// Calls `get` with the entry for a device's task, and returns the result; the first call for a task creates the
    /// entry. Fails with `unknown` if the cluster has no such task.
    fn with_entry<T>(
        &self,
        device: &Arc<str>,
        unknown: impl FnOnce(&TaskName) -> Status,
        get: impl Fn(&PeerEntry) -> T,
    ) -> Result<T, Status> {
        if let Some(entry) = self.by_device.read().get(device) {
            return Ok(get(entry));
        }
        let task = DeviceName::parse(device)?.task_name();
        let address = self.cluster.address(&task).ok_or_else(|| unknown(&task))?;
        let mut by_device = self.by_device.write();
        let entry = by_device.values().find(|k| *k.peer.task() == task).cloned();
        let entry = match entry {
            Some(entry) => entry,
            None => {
                let peer = Peer::new(task, address, self.connect_deadline, self.connections)?;
                let peer = Arc::new(peer);
                PeerEntry { route: self.link_table.route(&peer), peer }
            }
        };
        Ok(get(by_device.entry(device.clone()).or_insert(entry)))
    }
}
