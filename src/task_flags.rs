//! How a process is told which task of which cluster it is: by flags of its own, by the flags of TensorFlow's
//! tutorials, or by `TF_CONFIG`.

use graph::TaskName;
use proto::Cluster;

/// The place of a process in a cluster.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TaskFlags {
    /// The cluster: `ps=host:port;worker=host:port,host:port`, or JSON: `{"ps": ["host:port"], …}`, or a whole
    /// TF_CONFIG
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
        let (cluster, told) = self.cluster()?;
        let job = self.job.as_deref().or(told.as_ref().map(|t| &*t.job)).or(default_job);
        let job = job
            .ok_or("this process's job is not given: set --job (or --job_name), or TF_CONFIG's task.type")?;
        let task = TaskName::new(job, self.task.or(told.as_ref().map(|t| t.task)).unwrap_or(0));
        if cluster.address(&task).is_none() {
            return Err(format!("the cluster has no task {task}: it has {cluster}"));
        }
        Ok((cluster, task))
    }

    /// The cluster of the flags, or else that of `TF_CONFIG`; and the task that either names.
    fn cluster(&self) -> Result<(Cluster, Option<TaskName>), String> {
        let told = self.tf_config.as_deref().map(Cluster::from_tf_config).transpose();
        let told = told.map_err(|e| format!("TF_CONFIG: {e}"))?;
        if let Some(text) = &self.cluster {
            let (cluster, task) = Cluster::read(text).map_err(|e| format!("--cluster: {e}"))?;
            return Ok((cluster, task.or(told.and_then(|(_, task)| task))));
        }
        let hosts = [("ps", &self.ps_hosts), ("worker", &self.worker_hosts)];
        let given: Vec<String> =
            hosts.iter().filter_map(|(job, hosts)| hosts.as_ref().map(|h| format!("{job}={h}"))).collect();
        if !given.is_empty() {
            let cluster =
                Cluster::parse(&given.join(";")).map_err(|e| format!("--ps_hosts, --worker_hosts: {e}"))?;
            return Ok((cluster, told.and_then(|(_, task)| task)));
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
    fn every_way_says_the_same() {
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
        let whole = TaskFlags { cluster: some(json), ..Default::default() };
        let jobs = r#"{"worker": ["b:1", "b:2"], "ps": {"0": "a:1"}}"#;
        let jobs = TaskFlags { cluster: some(jobs), ..own.clone() };
        let other = r#"{"cluster": {"ps": ["c:1"]}, "task": {"type": "worker", "index": 1}}"#;
        let both = TaskFlags {
            cluster: some("ps=a:1;worker=b:1,b:2"),
            tf_config: some(other),
            ..Default::default()
        };
        let first = resolved(own);
        assert!(first.is_ok(), "{first:?}");
        for other in [tutorial, environment, whole, jobs, both] {
            assert_eq!(first, resolved(other));
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        for (flags, expected) in [
            (TaskFlags::default(), "the cluster is not given"),
            (TaskFlags { cluster: some("ps=a:1"), ..Default::default() }, "job is not given"),
            (TaskFlags { cluster: some("ps=a:1"), job: some("worker"), ..Default::default() }, "no task"),
            (TaskFlags { tf_config: some("{"), ..Default::default() }, "TF_CONFIG"),
            (TaskFlags { cluster: some("{"), ..Default::default() }, "--cluster: this is not JSON"),
        ] {
            let message = resolved(flags).err().unwrap_or_default();
            assert!(message.contains(expected), "{message}");
        }
    }
}
