//! Opening a session on its workers: at its start, and when a later graph names more of them.

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

/// Tasks that no node is on have so long to take part; they answered a moment ago.
const OTHERS_GRACE: Duration = Duration::from_secs(1);

impl Session {
    /// Opens the session on the workers that answered. Of those, some may have gone since, or stopped: without nodes on
    /// them the session begins without them.
    pub(crate) async fn start(&self, deadline: Instant) -> Result<(), Status> {
        let (cluster, placed) = {
            let state = self.state.lock();
            (state.cluster.clone(), state.placed.clone())
        };
        let left_out = self.open(&cluster.links, self.members.needs(&placed), deadline).await?;
        if !left_out.is_empty() {
            let without = cluster.without(&self.members, &left_out)?;
            self.state.lock().cluster = Arc::new(without);
        }
        Ok(())
    }

    /// Opens the session on these workers; gives those that did not take part, and are not needed.
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
        let (opened, there) = tokio::join!(opened, join_all(opened_on_others));
        opened.into_iter().collect::<Result<Vec<_>, Status>>()?;
        let there: BTreeSet<TaskName> = there.into_iter().flatten().flatten().collect();
        let mut left_out = BTreeSet::new();
        for (task, link) in others.into_iter().filter(|(task, _)| !there.contains(task)) {
            tracing::warn!(session = %self.handle, "{task} has answered, and takes no part now");
            left_out.insert(task.clone());
            // What it was asked may be done yet.
            let (session, link) = (self.handle.clone(), link.clone());
            let deadline = Some(Instant::now() + DELETE_DEADLINE);
            self.runtime.spawn(async move { link.delete_session(&session, deadline).await });
        }
        Ok(left_out)
    }

    fn worker_session(
        &self,
        task: &TaskName,
        cluster: &SessionCluster,
        deadline: Instant,
    ) -> CreateWorkerSession {
        let experimental = self.config.experimental.clone().unwrap_or_default();
        let shares_devices =
            self.config.share_cluster_devices_in_session || experimental.share_cluster_devices_in_session;
        // A cluster of the session's own brings state of its own, unless told otherwise.
        let isolate = match self.members.cluster_def {
            Some(_) => !experimental.share_session_state_in_clusterspec_propagation,
            None => self.config.isolate_session_state,
        };
        let (master_task, master_incarnation) = &self.engine.master;
        CreateWorkerSession {
            session: self.handle.clone(),
            server_def: pb::ServerDef {
                cluster: self.members.cluster_def.clone(),
                job_name: task.job.to_string(),
                task_index: task.task as i32,
                protocol: "grpc".to_owned(),
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

    /// The session's cluster with those who were not there at its start and whom the graph now needs.
    pub(super) async fn join(&self, graph: &Graph) -> Result<Arc<SessionCluster>, Status> {
        let cluster = self.cluster();
        let needs = self.members.needs(graph);
        let absent = self.members.links.iter().filter(|(task, _)| !cluster.links.contains_key(task));
        let absent: Links =
            absent.filter(|(task, _)| needs(task)).map(|(task, link)| (task.clone(), link.clone())).collect();
        if absent.is_empty() {
            return Ok(cluster);
        }
        let deadline = Instant::now() + self.engine.connect_deadline;
        let devices = self.members.devices(&absent, |_| true, deadline).await?;
        self.open(&absent, |_| true, deadline).await?;
        Ok(Arc::new(cluster.joined_by(&self.members, devices)?))
    }
}
