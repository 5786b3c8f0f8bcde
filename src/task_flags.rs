//! How a process is told which task of which cluster it is: by flags of its own, by the flags of TensorFlow's
//! tutorials, or by `TF_CONFIG`.

use graph::TaskName;
use proto::Cluster;

/// The place of a process in a cluster.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TaskFlags {
    /// The cluster: `ps=host:port;worker=host:port,host:port`, or TF_CONFIG's JSON for it
    #[arg(long)]
    cluster: Option<String>,

    /// This process's job
    #[arg(long, visible_alias = "job_name")]
    job: Option<String>,

    /// This process's index in its job
    #[arg(long, visible_alias = "task_index")]
    task: Option<u32>,

    /// Addresses of the parameter servers, separated by commas
    #[arg(long = "ps_hosts", visible_alias = "ps-hosts")]
    ps_hosts: Option<String>,

    /// Addresses of the workers, separated by commas
    #[arg(long = "worker_hosts", visible_alias = "worker-hosts")]
    worker_hosts: Option<String>,

    /// `{"cluster": {"ps": ["host:port"], …}, "task": {"type": "ps", "index": 0}}`; flags go before it
    #[arg(long = "tf-config", env = "TF_CONFIG", hide_env_values = true)]
    tf_config: Option<String>,
}

impl TaskFlags {
    /// The cluster and this process's task in it.
    ///
    /// # Errors
    /// What is missing or contradictory, with the flag to set.
    pub fn resolve(&self, default_job: Option<&str>) -> Result<(Cluster, TaskName), String> {
        let config = self.tf_config.as_deref().map(Cluster::from_tf_config).transpose();
        let (cluster, told) = match config.map_err(|e| format!("TF_CONFIG: {e}"))? {
            Some((cluster, task)) => (Some(cluster), task),
            None => (None, None),
        };
        let cluster = self.cluster(cluster)?;
        let job = self.job.as_deref().or(told.as_ref().map(|t| &*t.job)).or(default_job);
        let job = job
            .ok_or("this process's job is not given: set --job (or --job_name), or TF_CONFIG's task.type")?;
        let task = TaskName::new(job, self.task.or(told.as_ref().map(|t| t.task)).unwrap_or(0));
        if cluster.address(&task).is_none() {
            return Err(format!("the cluster has no task {task}: it has {cluster}"));
        }
        Ok((cluster, task))
    }

    /// The cluster of the flags, or else that of `TF_CONFIG`.
    fn cluster(&self, told: Option<Cluster>) -> Result<Cluster, String> {
        if let Some(text) = &self.cluster {
            return Cluster::parse(text).map_err(|e| format!("--cluster: {e}"));
        }
        let hosts = [("ps", &self.ps_hosts), ("worker", &self.worker_hosts)];
        let given: Vec<String> =
            hosts.iter().filter_map(|(job, hosts)| hosts.as_ref().map(|h| format!("{job}={h}"))).collect();
        if !given.is_empty() {
            return Cluster::parse(&given.join(";")).map_err(|e| format!("--ps_hosts, --worker_hosts: {e}"));
        }
        told.ok_or_else(|| {
            "the cluster is not given: set --cluster, or --ps_hosts and --worker_hosts, or TF_CONFIG"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(flags: TaskFlags) -> Result<String, String> {
        flags.resolve(None).map(|(cluster, task)| format!("{task} of {cluster}"))
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn three_ways_say_the_same() {
        let own = TaskFlags {
            cluster: some("ps=a:1;worker=b:1,b:2"),
            job: some("worker"),
            task: Some(1),
            ..Default::default()
        };
        let tutorial = TaskFlags {
            ps_hosts: some("a:1"),
            worker_hosts: some("b:1,b:2"),
            job: some("worker"),
            task: Some(1),
            ..Default::default()
        };
        let json = r#"{"cluster": {"ps": ["a:1"], "worker": ["b:1", "b:2"]}, "task": {"type": "worker", "index": 1}}"#;
        let environment = TaskFlags { tf_config: some(json), ..Default::default() };
        let first = resolved(own);
        assert!(first.is_ok(), "{first:?}");
        assert_eq!(first, resolved(tutorial));
        assert_eq!(first, resolved(environment));
    }

    #[test]
    fn what_is_missing_is_said() {
        for (flags, expected) in [
            (TaskFlags::default(), "the cluster is not given"),
            (TaskFlags { cluster: some("ps=a:1"), ..Default::default() }, "job is not given"),
            (TaskFlags { cluster: some("ps=a:1"), job: some("worker"), ..Default::default() }, "no task"),
            (TaskFlags { tf_config: some("{"), ..Default::default() }, "TF_CONFIG"),
        ] {
            let message = resolved(flags).err().unwrap_or_default();
            assert!(message.contains(expected), "{message}");
        }
    }
}
