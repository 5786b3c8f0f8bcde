//! The tasks that a session may use, and the tasks that it does use, with the links to their workers and with
//! their devices.

use crate::device_query::{DeviceQuery, QueryAction};
use crate::step::wait_until;
use futures::stream::{FuturesUnordered, StreamExt};
use graph::{Code, DeviceAttributes, DeviceName, DeviceSpec, Graph, RendezvousKey, TaskName};
use placer::{DeviceSet, Names};
use proto::link::WorkerLink;
use proto::{Cluster, RemoteWorker, Status, pb};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The links to workers, by task.
pub type Links = BTreeMap<TaskName, Arc<dyn WorkerLink>>;

/// The tasks that a session may use.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    /// The master's own task, named as in the session's cluster.
    pub(crate) task: TaskName,
    pub(crate) links: Links,
    filters: Vec<DeviceSpec>,
    /// The `cluster_def` of the session's `ConfigProto`, if it is set; all tasks are then named as in
    /// `cluster_def`.
    pub(crate) cluster_def: Option<pb::ClusterDef>,
}

impl Members {
    /// Returns the tasks of the server's cluster that match a filter, and the master's task.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed filter.
    pub(crate) fn of_server(task: &TaskName, links: &Links, filters: &[String]) -> Result<Members, Status> {
        let (task, links) = (task.clone(), links.clone());
        Members { task, links, filters: Vec::new(), cluster_def: None }.filtered(filters)
    }

    /// Returns the tasks of `def`, the session's own cluster, that match a filter, and the master's task,
    /// which is the task of `def` with one of the `addresses`. `own` is the link to the master's task.
    ///
    /// # Errors
    /// `InvalidArgument` if no task of `def` has one of the `addresses`.
    pub(crate) fn of_session(
        def: &pb::ClusterDef,
        addresses: &[&str],
        own: &Arc<dyn WorkerLink>,
        filters: &[String],
        connect_deadline: Duration,
    ) -> Result<Members, Status> {
        let cluster = Cluster::from_def(def)?;
        let find = |address: &&str| cluster.tasks().find(|(_, a)| a == address).map(|(task, _)| task);
        let task = addresses.iter().find_map(find).ok_or_else(|| {
            Status::invalid(format!(
                "ConfigProto.cluster_def does not name this master, which is at {}",
                addresses.join(" or ")
            ))
        })?;
        let mut links: Links = BTreeMap::new();
        for (other, address) in cluster.tasks().filter(|(other, _)| *other != task) {
            links.insert(other.clone(), Arc::new(RemoteWorker::new(other, address, connect_deadline)?));
        }
        links.insert(task.clone(), own.clone());
        Members { task, links, filters: Vec::new(), cluster_def: Some(def.clone()) }.filtered(filters)
    }

    /// Removes the tasks that no device filter matches, except the master's task.
    fn filtered(mut self, filters: &[String]) -> Result<Members, Status> {
        self.filters = filters.iter().map(|f| DeviceSpec::parse(f)).collect::<Result<Vec<_>, _>>()?;
        let (own, filters) = (self.task.clone(), &self.filters);
        self.links.retain(|task, _| *task == own || filters.is_empty() || matches_any(filters, task));
        Ok(self)
    }

    /// Returns the tasks that match a filter, or all tasks if there are no filters.
    pub(crate) fn matching(&self) -> impl Iterator<Item = (&TaskName, &Arc<dyn WorkerLink>)> {
        self.links.iter().filter(|(task, _)| self.filters.is_empty() || matches_any(&self.filters, task))
    }

    /// Returns a predicate for the tasks that a session over `graph` needs: the master's task, the tasks that
    /// match a filter, and the tasks that node devices name, in full or in part.
    pub(crate) fn needs(&self, graph: &Graph) -> impl Fn(&TaskName) -> bool + use<> {
        let named_devices: BTreeSet<&str> =
            graph.nodes().map(|(_, n)| &*n.device).filter(|device| !device.is_empty()).collect();
        // Malformed device names are skipped, because placement reports them.
        let specs = named_devices.iter().filter_map(|device| DeviceSpec::parse(device).ok());
        let specs: Vec<_> =
            specs.filter(|s| s.job.is_some() || s.replica.is_some() || s.task.is_some()).collect();
        let (own, filtered) = (self.task.clone(), !self.filters.is_empty());
        move |task| filtered || *task == own || matches_any(&specs, task)
    }

    /// Queries the tasks in `tasks` for their devices; see [`DeviceQuery`].
    pub(crate) async fn devices(
        &self,
        tasks: &Links,
        is_needed: impl Fn(&TaskName) -> bool,
        deadline: Instant,
    ) -> Result<BTreeMap<TaskName, Vec<DeviceAttributes>>, Status> {
        let mut query = DeviceQuery::new(tasks.keys().cloned(), is_needed, Instant::now());
        let ask = |(task, link): (&TaskName, &Arc<dyn WorkerLink>)| {
            let (task, link) = (task.clone(), link.clone());
            async move { (task, link.status(Some(deadline)).await) }
        };
        let mut answers: FuturesUnordered<_> = tasks.iter().map(ask).collect();
        loop {
            let until = match query.next_action(Instant::now()) {
                QueryAction::Complete => return query.finish(),
                QueryAction::Report(missing) => {
                    for task in missing {
                        tracing::info!("CreateSession still waiting for response from worker: {task}");
                    }
                    continue;
                }
                QueryAction::Wait { until } => until,
            };
            tokio::select! {
                Some((task, answer)) = answers.next() => {
                    let answer = self.session_devices(&task, answer);
                    query.record(task, answer);
                }
                () = wait_until(Some(until)) => {}
            }
        }
    }

    /// Returns the devices in a task's answer, named as in the session's cluster, without devices that no
    /// filter matches.
    fn session_devices(
        &self,
        task: &TaskName,
        answer: Result<Vec<DeviceAttributes>, Status>,
    ) -> Result<Vec<DeviceAttributes>, String> {
        let mut devices = answer.map_err(|status| status.to_string())?;
        for device in &mut devices {
            let name = device.name.task_name();
            if self.cluster_def.is_some() {
                device.name = DeviceName::new(task, &device.name.device_type, device.name.id);
            } else if name != *task {
                return Err(format!("its address is answered by {name}"));
            }
        }
        let is_allowed = |d: &DeviceAttributes| {
            *task == self.task || self.filters.is_empty() || self.filters.iter().any(|f| f.matches(&d.name))
        };
        devices.retain(is_allowed);
        Ok(devices)
    }
}

/// Returns whether a device of the task can match one of the device specifications.
fn matches_any(specs: &[DeviceSpec], task: &TaskName) -> bool {
    let whole = DeviceSpec {
        job: Some(task.job.clone()),
        replica: Some(task.replica),
        task: Some(task.task),
        ..DeviceSpec::default()
    };
    specs.iter().any(|s| s.is_compatible(&whole))
}

/// The tasks and devices that a session uses.
#[derive(Debug)]
pub(crate) struct SessionCluster {
    pub(crate) links: Links,
    pub(crate) devices: DeviceSet,
    pub(crate) attributes: BTreeMap<TaskName, Vec<DeviceAttributes>>,
    /// The device that exchanges fed and fetched tensors with the client.
    pub(crate) client_device: DeviceAttributes,
    /// The index of the client device in `devices`.
    pub(crate) client_index: u32,
    /// The generator of names for the nodes that partitioning adds to the session's graphs.
    pub(crate) names: Arc<Names>,
}

impl SessionCluster {
    /// Returns the cluster of the tasks in `attributes`, which maps each task to its devices.
    ///
    /// # Errors
    /// `FailedPrecondition` if the master's task has no CPU device.
    pub(crate) fn new(
        members: &Members,
        attributes: BTreeMap<TaskName, Vec<DeviceAttributes>>,
        names: Arc<Names>,
    ) -> Result<SessionCluster, Status> {
        let own = attributes.get(&members.task).into_iter().flatten();
        let client_device =
            own.clone().find(|d| &*d.name.device_type == "CPU").cloned().ok_or_else(|| {
                Status::new(
                    Code::FailedPrecondition,
                    format!("the master's task {} has no CPU device", members.task),
                )
            })?;
        let all = attributes.values().flatten().map(|d| (d.name.clone(), d.incarnation));
        let devices = DeviceSet::new(all).with_local(members.task.clone());
        let client_index = devices.find(&client_device.name).ok_or_else(|| {
            Status::new(Code::Internal, format!("{} is no device of the session", client_device.name))
        })?;
        let links = members.links.iter().filter(|(task, _)| attributes.contains_key(task));
        let links = links.map(|(task, link)| (task.clone(), link.clone())).collect();
        Ok(SessionCluster { links, devices, attributes, client_device, client_index, names })
    }

    /// Returns a copy of the cluster to which the tasks in `more` are added.
    pub(crate) fn with_tasks(
        &self,
        members: &Members,
        more: BTreeMap<TaskName, Vec<DeviceAttributes>>,
    ) -> Result<SessionCluster, Status> {
        let mut attributes = self.attributes.clone();
        attributes.extend(more);
        SessionCluster::new(members, attributes, self.names.clone())
    }

    /// Returns the cluster without the tasks in `left_out`.
    pub(crate) fn without_tasks(
        &self,
        members: &Members,
        left_out: &BTreeSet<TaskName>,
    ) -> Result<SessionCluster, Status> {
        let mut attributes = self.attributes.clone();
        attributes.retain(|task, _| !left_out.contains(task));
        SessionCluster::new(members, attributes, self.names.clone())
    }

    /// Returns the link to a task that the session uses.
    pub(crate) fn link(&self, task: &TaskName) -> Result<Arc<dyn WorkerLink>, Status> {
        let link = self.links.get(task).cloned();
        link.ok_or_else(|| Status::new(Code::Internal, format!("the session does not use {task}")))
    }

    /// Returns the rendezvous key of a fed or fetched tensor.
    pub(crate) fn client_key(&self, name: &str) -> Arc<str> {
        let device = self.client_device.name.to_string();
        let edge = placer::normalise_endpoint(name);
        RendezvousKey::new(&*device, self.client_device.incarnation, &*device, &*edge).text
    }
}
