//! The opening of a session on its workers: at the session's start, and when an extended graph names further
//! tasks.

use super::{DELETE_DEADLINE, Session};
use crate::cluster::{Links, SessionCluster};
use futures::future::join_all;
use graph::{Graph, TaskName};
use proto::link::{CreateWorkerSession, WorkerLink};
use proto::{Epoch, Status, pb};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// The time limit for opening a session on a task that the session does not need. A short limit suffices,
/// because the task has just answered the device query.
const OTHERS_GRACE: Duration = Duration::from_secs(1);

impl Session {
    /// Opens the session on the workers that answered the device query. A worker that the session does not
    /// need and that does not open it is left out of the session.
    pub(crate) async fn start(&self, deadline: Instant) -> Result<(), Status> {
        let (cluster, placed) = {
            let state = self.state.lock();
            (state.cluster.clone(), state.placed.clone())
        };
        let left_out = self.open(&cluster.links, self.members.needs(&placed), deadline).await?;
        if !left_out.is_empty() {
            let without = cluster.without_tasks(&self.members, &left_out)?;
            self.state.lock().cluster = Arc::new(without);
        }
        Ok(())
    }

    /// Opens the session on the workers in `links`. Returns the tasks that the session does not need and that
    /// did not open it.
    async fn open(
        &self,
        links: &Links,
        is_needed: impl Fn(&TaskName) -> bool,
        deadline: Instant,
    ) -> Result<BTreeSet<TaskName>, Status> {
        let cluster = self.cluster();
        let open = |(task, link): (&TaskName, &Arc<dyn WorkerLink>)| {
            let request = self.worker_session(task, &cluster, deadline);
            let (task, link) = (task.clone(), link.clone());
            async move {
                let opened = link.create_session(request).await;
                opened.map_err(|s| Status { message: format!("{task}: {s}"), ..s }).map(|()| task)
            }
        };
        let (needed, others): (Vec<_>, Vec<_>) = links.iter().partition(|(task, _)| is_needed(task));
        let opened_on_others = others.iter().map(|&entry| timeout(OTHERS_GRACE, open(entry)));
        let opened = join_all(needed.iter().map(|&entry| open(entry)));
        let (opened, opened_tasks) = tokio::join!(opened, join_all(opened_on_others));
        opened.into_iter().collect::<Result<Vec<_>, Status>>()?;
        let opened_tasks: BTreeSet<TaskName> = opened_tasks.into_iter().flatten().flatten().collect();
        let mut left_out = BTreeSet::new();
        for (task, link) in others.into_iter().filter(|(task, _)| !opened_tasks.contains(task)) {
            tracing::warn!(session = %self.handle, "{task} has answered the device query, but does not open the session");
            left_out.insert(task.clone());
            // The worker may still carry out the request to open the session, so it is asked to delete the
            // session.
            let (session, link) = (self.handle.clone(), link.clone());
            let deadline = Some(Instant::now() + DELETE_DEADLINE);
            self.runtime.spawn(async move { link.delete_session(&session, deadline).await });
        }
        Ok(left_out)
    }

    /// Returns the request that opens the session on a worker.
    fn worker_session(
        &self,
        task: &TaskName,
        cluster: &SessionCluster,
        deadline: Instant,
    ) -> CreateWorkerSession {
        let experimental = self.config.experimental.clone().unwrap_or_default();
        let shares_devices =
            self.config.share_cluster_devices_in_session || experimental.share_cluster_devices_in_session;
        // A session with its own cluster has isolated state, unless its options specify otherwise.
        let isolate = match self.members.cluster_def {
            Some(_) => !experimental.share_session_state_in_clusterspec_propagation,
            None => self.config.isolate_session_state,
        };
        let (master_task, master_incarnation) = &self.context.master;
        CreateWorkerSession {
            session: self.handle.clone(),
            server_def: pb::ServerDef {
                cluster: self.members.cluster_def.clone(),
                job_name: task.job.to_string(),
                task_index: task.task as i32,
                protocol: "grpc".to_owned(),
                default_session_config: named_leader(&experimental),
                ..Default::default()
            },
            isolate_session_state: isolate,
            cluster_devices: match shares_devices {
                true => cluster.attributes.values().flatten().cloned().collect(),
                false => Vec::new(),
            },
            master_task: master_task.to_string(),
            master_incarnation: *master_incarnation,
            epoch: Epoch::of(&self.config),
            deadline: Some(deadline),
        }
    }

    /// Opens the session on the tasks that `graph` needs and that the session does not use yet. Returns the
    /// session's cluster with these tasks added.
    pub(super) async fn join(&self, graph: &Graph) -> Result<Arc<SessionCluster>, Status> {
        let cluster = self.cluster();
        let needs = self.members.needs(graph);
        let absent = self.members.links.iter().filter(|(task, _)| !cluster.links.contains_key(task));
        let absent: Links =
            absent.filter(|(task, _)| needs(task)).map(|(task, link)| (task.clone(), link.clone())).collect();
        if absent.is_empty() {
            return Ok(cluster);
        }
        let deadline = Instant::now() + self.context.connect_deadline;
        let devices = self.members.devices(&absent, |_| true, deadline).await?;
        self.open(&absent, |_| true, deadline).await?;
        Ok(Arc::new(cluster.with_tasks(&self.members, devices)?))
    }
}

/// Returns the options that tell a worker which leader of groups the session's configuration names.
fn named_leader(experimental: &pb::config_proto::Experimental) -> Option<pb::ConfigProto> {
    let collective_group_leader = experimental.collective_group_leader.clone();
    let experimental = pb::config_proto::Experimental { collective_group_leader, ..Default::default() };
    let names_one = !experimental.collective_group_leader.is_empty();
    names_one.then(|| pb::ConfigProto { experimental: Some(experimental), ..Default::default() })
}
