//! The flags that give a process its task and its cluster: this package's flags, the flags of TensorFlow's tutorials,
//! or `TF_CONFIG`.

use graph::TaskName;
use proto::Cluster;
use proto::cluster::addresses;

/// The flags that select the task of a process.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TaskFlags {
    /// The cluster: `ps=host:port;worker=host:port,host:port`, or JSON: `{"ps": ["host:port"], …}`, or a
    /// whole TF_CONFIG
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

    /// Number of processes for each parameter server: 1, or 2, of which one is a standby that replicates the
    /// state and takes over when the other one dies. With 2, the cluster names two addresses for each task,
    /// first those of all tasks, then those of their standbys in the same order; every process of the cluster
    /// needs the same value
    #[arg(long = "ps-replicas", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    ps_replicas: u32,

    /// `{"cluster": {"ps": ["host:port"], …}, "task": {"type": "ps", "index": 0}}`; all other flags take precedence
    /// over this one
    #[arg(long = "tf-config", env = "TF_CONFIG", hide_env_values = true)]
    tf_config: Option<String>,
}

/// The job whose tasks may have standbys.
const REPLICATED: &str = "ps";

/// The task of a process, with its cluster and its address.
#[derive(Clone, Debug)]
pub struct TaskIdentity {
    pub cluster: Cluster,
    pub task: TaskName,
    /// The address, `host:port`, on which this process listens while it serves its task, not while it is a standby.
    pub address: String,
    /// The other process of the task, if the task has two.
    pub replica: Option<Replica>,
}

/// The role of a process in a task with two processes. One of them, the primary, serves the task; the other is its
/// standby, which takes over when the primary dies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// True for the process that becomes the primary if both processes of the task start together.
    pub is_first: bool,
    /// The address on which the other process of the task listens while that process is the primary.
    pub other: String,
}

impl TaskFlags {
    /// Returns the task of this process and its cluster.
    ///
    /// # Errors
    /// A description of the missing or contradictory value, with the flag to set.
    pub fn resolve(&self, default_job: Option<&str>) -> Result<TaskIdentity, String> {
        let (cluster, task) = self.resolve_task(default_job)?;
        let address = cluster.address(&task).unwrap_or_default().to_owned();
        if self.ps_replicas < 2 || !cluster.jobs().any(|job| job == REPLICATED) {
            return Ok(TaskIdentity { cluster, task, address, replica: None });
        }
        let cluster = cluster.with_standbys(REPLICATED).map_err(|e| format!("--ps-replicas: {e}"))?;
        if &*task.job != REPLICATED {
            return Ok(TaskIdentity { cluster, task, address, replica: None });
        }
        let count = cluster.tasks().filter(|(task, _)| &*task.job == REPLICATED).count() as u32;
        let is_first = task.task < count;
        let task = TaskName::new(REPLICATED, task.task % count);
        let other = addresses(cluster.address(&task).unwrap_or_default()).find(|other| *other != address);
        let other =
            other.ok_or_else(|| format!("--ps-replicas: both processes of {task} are at {address}"))?;
        let replica = Some(Replica { is_first, other: other.to_owned() });
        Ok(TaskIdentity { cluster, task, address, replica })
    }

    /// Returns the cluster and the task as configured, in which each standby still counts as a separate task.
    fn resolve_task(&self, default_job: Option<&str>) -> Result<(Cluster, TaskName), String> {
        let (cluster, configured) = self.cluster()?;
        let job = self.job.as_deref().or(configured.as_ref().map(|t| &*t.job)).or(default_job);
        let job = job
            .ok_or("this process's job is not given: set --job (or --job_name), or TF_CONFIG's task.type")?;
        let task = TaskName::new(job, self.task.or(configured.as_ref().map(|t| t.task)).unwrap_or(0));
        if cluster.address(&task).is_none() {
            return Err(format!("the cluster has no task {task}: it has {cluster}"));
        }
        Ok((cluster, task))
    }

    /// Returns the cluster and, if it is given, the task. The cluster comes from the flags or else from `TF_CONFIG`,
    /// the task from a TF_CONFIG in `--cluster` or else from `TF_CONFIG`.
    fn cluster(&self) -> Result<(Cluster, Option<TaskName>), String> {
        let configured = self.tf_config.as_deref().map(Cluster::from_tf_config).transpose();
        let configured = configured.map_err(|e| format!("TF_CONFIG: {e}"))?;
        if let Some(text) = &self.cluster {
            let (cluster, task) = Cluster::read(text).map_err(|e| format!("--cluster: {e}"))?;
            return Ok((cluster, task.or(configured.and_then(|(_, task)| task))));
        }
        let hosts = [("ps", &self.ps_hosts), ("worker", &self.worker_hosts)];
        let given: Vec<String> =
            hosts.iter().filter_map(|(job, hosts)| hosts.as_ref().map(|h| format!("{job}={h}"))).collect();
        if !given.is_empty() {
            let cluster =
                Cluster::parse(&given.join(";")).map_err(|e| format!("--ps_hosts, --worker_hosts: {e}"))?;
            return Ok((cluster, configured.and_then(|(_, task)| task)));
        }
        configured.ok_or_else(|| {
            "the cluster is not given: set --cluster, or --ps_hosts and --worker_hosts, or TF_CONFIG"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(flags: TaskFlags) -> Result<String, String> {
        flags.resolve(None).map(|TaskIdentity { cluster, task, .. }| format!("{task} of {cluster}"))
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn all_kinds_of_flags_give_the_same_task() {
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
    fn a_standby_gets_its_task_and_primary() {
        let flags = |job, task| TaskFlags {
            cluster: some("ps=a:1,b:2,c:3,d:4;worker=e:5"),
            job: some(job),
            task: Some(task),
            ps_replicas: 2,
            ..Default::default()
        };
        for (index, address, is_first, other) in [(1, "b:2", true, "d:4"), (3, "d:4", false, "b:2")] {
            let place = flags("ps", index).resolve(None);
            let place = place.map(|p| (p.task.to_string(), p.address, p.cluster.to_string(), p.replica));
            let replica = Some(Replica { is_first, other: other.to_owned() });
            let (task, cluster) = ("/job:ps/replica:0/task:1", "ps=a:1|c:3,b:2|d:4;worker=e:5");
            assert_eq!(place, Ok((task.to_owned(), address.to_owned(), cluster.to_owned(), replica)));
        }
        let worker = flags("worker", 0).resolve(None).map(|p| (p.task.to_string(), p.replica));
        assert_eq!(worker, Ok(("/job:worker/replica:0/task:0".to_owned(), None)));
        let odd = TaskFlags { cluster: some("ps=a:1;worker=b:1"), ..flags("ps", 0) };
        assert!(odd.resolve(None).is_err_and(|e| e.contains("--ps-replicas")));
    }

    #[test]
    fn missing_values_are_named_in_errors() {
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
