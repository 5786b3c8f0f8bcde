//! The sessions of masters on this worker: their device and task names, registered graphs and cached kernels.

use crate::collective::SessionCollectives;
use crate::devices::Devices;
use crate::epochs::{EpochGuard, SessionEpoch};
use crate::graphs::RegisteredGraph;
use crate::peers::Peers;
use crate::steps::StepState;
use crate::worker::Worker;
use executor::KernelCache;
use graph::{Code, TaskName};
use parking_lot::Mutex;
use placer::Names;
use proto::link::CreateWorkerSession;
use proto::{Cluster, Status};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// A session of a master on this worker.
#[derive(Debug)]
pub(crate) struct Session {
    /// The name of this task in the session's cluster.
    pub(crate) task: TaskName,
    /// The prefix of the names of this task's devices in the session: the task's name and a slash.
    pub(crate) own_prefix: Arc<str>,
    pub(crate) devices: Devices,
    pub(crate) peers: Arc<Peers>,
    pub(crate) kernels: KernelCache,
    /// The generator of names for the Send and Recv nodes that partitioning graphs by device adds.
    pub(crate) names: Names,
    master: Option<(String, u64)>,
    session_epoch: Option<Arc<SessionEpoch>>,
    graphs: Mutex<Graphs>,
    /// The task that leads the session's groups of collectives; `None` for the worker's own choice.
    collective_leader: Option<TaskName>,
    /// The members of collectives in the session; made at first use.
    collectives: OnceLock<Arc<SessionCollectives>>,
}

#[derive(Debug, Default)]
struct Graphs {
    last_handle: u64,
    by_handle: BTreeMap<Arc<str>, Arc<RegisteredGraph>>,
}

impl Session {
    fn new(task: TaskName, devices: Devices, peers: Arc<Peers>) -> Session {
        let (kernels, names) = (KernelCache::new(), Names::worker());
        let own_prefix = format!("{task}/").into();
        let (master, session_epoch) = (None, None);
        Session {
            task,
            own_prefix,
            devices,
            peers,
            kernels,
            names,
            master,
            session_epoch,
            graphs: Mutex::default(),
            collective_leader: None,
            collectives: OnceLock::new(),
        }
    }

    /// Returns the members of collectives in the session, whose handle is given.
    pub(crate) fn collectives(&self, worker: &Worker, handle: &Arc<str>) -> Arc<SessionCollectives> {
        let make = || {
            let leader = self.collective_leader.as_ref();
            SessionCollectives::new(worker, handle, &self.task, &self.peers, leader)
        };
        self.collectives.get_or_init(make).clone()
    }

    /// Counts a step as running in the session's epoch until the returned guard is dropped; `None` if the
    /// session has no epoch.
    ///
    /// # Errors
    /// `Aborted` if the session's epoch has ended.
    pub(crate) fn enter(&self, step: &Arc<StepState>) -> Result<Option<EpochGuard>, Status> {
        self.session_epoch.as_ref().map(|session_epoch| session_epoch.enter(step)).transpose()
    }

    /// Stores a graph. Returns its handle: the graph's number, counted from 1, as 16 hexadecimal digits.
    pub(crate) fn add_graph(&self, graph: RegisteredGraph) -> Arc<str> {
        let mut graphs = self.graphs.lock();
        graphs.last_handle += 1;
        let handle: Arc<str> = format!("{:016x}", graphs.last_handle).into();
        graphs.by_handle.insert(handle.clone(), Arc::new(graph));
        handle
    }

    /// Returns the graph with this handle.
    pub(crate) fn graph(&self, handle: &str) -> Result<Arc<RegisteredGraph>, Status> {
        self.graphs
            .lock()
            .by_handle
            .get(handle)
            .cloned()
            .ok_or_else(|| Status::new(Code::Aborted, format!("Graph handle is not found: {handle}")))
    }

    fn has_graphs(&self) -> bool {
        !self.graphs.lock().by_handle.is_empty()
    }

    /// Removes the graph with this handle.
    pub(crate) fn remove_graph(&self, handle: &str) -> Result<(), Status> {
        let removed = self.graphs.lock().by_handle.remove(handle);
        removed.map(drop).ok_or_else(|| {
            let text = format!("Graph handle is not found: {handle}. Possibly, this worker just restarted.");
            Status::new(Code::Aborted, text)
        })
    }
}

/// The sessions by handle, and the one session that is shared by all masters that create none.
#[derive(Debug)]
pub(crate) struct Sessions {
    shared: Arc<Session>,
    by_handle: Mutex<BTreeMap<Arc<str>, Arc<Session>>>,
}

impl Sessions {
    pub(crate) fn new(task: TaskName, devices: Devices, peers: Arc<Peers>) -> Sessions {
        let shared = Arc::new(Session::new(task, devices, peers));
        Sessions { shared, by_handle: Mutex::default() }
    }

    /// Returns the other tasks of the cluster that the process was started with.
    pub(crate) fn own_peers(&self) -> &Arc<Peers> {
        &self.shared.peers
    }

    /// Creates a session unless it exists. Sessions of an earlier incarnation of the same master are removed.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty handle, a malformed cluster spec or a malformed name of a leader.
    pub(crate) fn create(
        &self,
        request: &CreateWorkerSession,
        session_epoch: Option<Arc<SessionEpoch>>,
    ) -> Result<(), Status> {
        if request.session.is_empty() {
            return Err(Status::invalid("Session must be non-empty."));
        }
        let known_master = !request.master_task.is_empty() && request.master_incarnation != 0;
        let master = known_master.then(|| (request.master_task.clone(), request.master_incarnation));
        let (task, peers) = self.resolve_names(request)?;
        let devices = if request.isolate_session_state {
            self.shared.devices.isolated(&task)
        } else if task != self.shared.task {
            self.shared.devices.renamed(&task)
        } else {
            self.shared.devices.clone()
        };
        let collective_leader = leader_of(request)?;
        let session = Session::new(task, devices, peers);
        let session = Session { master: master.clone(), session_epoch, collective_leader, ..session };
        let mut by_handle = self.by_handle.lock();
        if let Some((task, incarnation)) = master {
            by_handle.retain(|_, s| s.master.as_ref().is_none_or(|(t, i)| *t != task || *i == incarnation));
        }
        by_handle.entry(request.session.clone()).or_insert_with(|| Arc::new(session));
        Ok(())
    }

    /// Returns this task's name and the other tasks in a session's cluster: the worker's own cluster, unless
    /// the master sends a cluster spec.
    fn resolve_names(&self, request: &CreateWorkerSession) -> Result<(TaskName, Arc<Peers>), Status> {
        let def = &request.server_def;
        match &def.cluster {
            Some(cluster) if !cluster.job.is_empty() => {
                let index = u32::try_from(def.task_index)
                    .map_err(|_| Status::invalid(format!("task index {} is negative", def.task_index)))?;
                let peers = self.shared.peers.for_cluster(Cluster::from_def(cluster)?);
                Ok((TaskName::new(&def.job_name, index), Arc::new(peers)))
            }
            _ => Ok((self.shared.task.clone(), self.shared.peers.clone())),
        }
    }

    /// Returns whether any session has a graph; without a graph no step can run.
    pub(crate) fn have_graphs(&self) -> bool {
        self.shared.has_graphs() || self.by_handle.lock().values().any(|session| session.has_graphs())
    }

    /// Removes the session with a handle, if it exists.
    pub(crate) fn delete(&self, handle: &str) {
        let removed = self.by_handle.lock().remove(handle);
        // The lock is free while the session's kernels are dropped, which may write to files.
        drop(removed);
    }

    /// Returns the session with a handle; an empty handle means the session that is shared by all masters that create
    /// none.
    ///
    /// # Errors
    /// `Aborted` if the session's epoch has ended; for an unknown session, `Aborted` marked as a restart of
    /// the worker, because restarts lose sessions.
    pub(crate) fn get(&self, handle: &str) -> Result<Arc<Session>, Status> {
        if handle.is_empty() { Ok(self.shared.clone()) } else { self.get_created(handle) }
    }

    /// Returns a session like [`Sessions::get`], but only a session that a master has created: an empty handle is an
    /// error.
    pub(crate) fn get_created(&self, handle: &str) -> Result<Arc<Session>, Status> {
        let found = self.by_handle.lock().get(handle).cloned();
        let session = found.ok_or_else(|| {
            let text = format!(
                "Session handle is not found: {handle}. Possibly this worker (\"{}\") just restarted.",
                self.shared.task
            );
            Status::new(Code::Aborted, text).restarted()
        })?;
        session.session_epoch.as_ref().map_or(Ok(()), |session_epoch| session_epoch.check())?;
        Ok(session)
    }
}

/// Returns the task that the master's session names as the leader of groups of collectives.
fn leader_of(request: &CreateWorkerSession) -> Result<Option<TaskName>, Status> {
    let config = request.server_def.default_session_config.as_ref();
    let named = config.and_then(|config| config.experimental.as_ref()).map(|e| &e.collective_group_leader);
    let named = named.filter(|name| !name.is_empty());
    Ok(named.map(|name| TaskName::parse(name)).transpose()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{LinkTable, Transport};
    use device::gpu_options::{GpuOptions, GpuSelection};
    use std::time::Duration;

    fn sessions() -> Sessions {
        let task = TaskName::new("ps", 0);
        let runtime = tokio::runtime::Handle::current();
        let link_table = LinkTable::new(
            Transport::Grpc,
            1,
            runtime,
            (&TaskName::new("ps", 0), vec![]),
            "",
            Cluster::new(),
        );
        let peers = Peers::new(Cluster::new(), Duration::from_secs(1), 1, link_table);
        let none = GpuOptions { visible: GpuSelection::Listed(Vec::new()), ..GpuOptions::default() };
        let devices = Devices::new(&task, 2, 1 << 20, &none).unwrap_or_else(|e| panic!("{e}"));
        Sessions::new(task.clone(), devices, Arc::new(peers))
    }

    fn request(handle: &str, incarnation: u64) -> CreateWorkerSession {
        let master_task = "/job:worker/replica:0/task:0".to_owned();
        let session = handle.into();
        CreateWorkerSession { session, master_task, master_incarnation: incarnation, ..Default::default() }
    }

    #[tokio::test]
    async fn a_restarted_master_ends_its_earlier_sessions() -> Result<(), Status> {
        let sessions = sessions();
        sessions.create(&request("a", 1), None)?;
        let first = sessions.get("a")?;
        sessions.create(&request("a", 1), None)?;
        assert!(Arc::ptr_eq(&first, &sessions.get("a")?));
        sessions.create(&request("b", 1), None)?;
        let other =
            CreateWorkerSession { master_task: "/job:worker/replica:0/task:1".into(), ..request("c", 9) };
        sessions.create(&other, None)?;
        sessions.create(&request("d", 2), None)?;
        let there: Vec<bool> = ["a", "b", "c", "d"].iter().map(|h| sessions.get(h).is_ok()).collect();
        assert_eq!(there, [false, false, true, true]);
        sessions.delete("c");
        sessions.delete("c");
        let gone = sessions.get("c").err().map(|s| (s.code, s.restarted, s.message));
        let text = "Session handle is not found: c. Possibly this worker (\"/job:ps/replica:0/task:0\") just restarted.";
        assert_eq!(gone, Some((Code::Aborted, true, text.to_owned())));
        let empty = sessions.create(&request("", 1), None).err().map(|s| (s.code, s.message));
        assert_eq!(empty, Some((Code::InvalidArgument, "Session must be non-empty.".to_owned())));
        Ok(())
    }

    #[tokio::test]
    async fn an_isolated_session_has_separate_devices_with_its_names() -> Result<(), Status> {
        let sessions = sessions();
        let server_def = proto::pb::ServerDef {
            cluster: Some(Cluster::parse("foo=3@h:1")?.to_def()),
            job_name: "foo".into(),
            task_index: 3,
            ..Default::default()
        };
        let isolated = CreateWorkerSession {
            server_def: server_def.clone(),
            isolate_session_state: true,
            ..request("a", 1)
        };
        sessions.create(&isolated, None)?;
        let (own, base) = (sessions.get("a")?.devices.attributes(), sessions.get("")?.devices.attributes());
        assert_eq!(own[1].name.to_string(), "/job:foo/replica:0/task:3/device:CPU:1");
        assert_eq!(own[1].incarnation, base[1].incarnation);
        let shared = CreateWorkerSession { server_def, ..request("b", 1) };
        sessions.create(&shared, None)?;
        let renamed = sessions.get("b")?.devices.attributes();
        assert_eq!(renamed[1], own[1]);
        let [own, shared, base] = ["a", "b", ""].map(|handle| {
            let session = sessions.get(handle)?;
            let device = session.devices.iter().next().ok_or(Status::invalid("no devices"))?;
            Ok::<_, Status>(std::ptr::from_ref(device.resources()))
        });
        assert_eq!(shared, base);
        assert_ne!(own, base);
        Ok(())
    }
}
