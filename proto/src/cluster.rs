//! The cluster: its tasks and their addresses.

use crate::pb;
use crate::status::Status;
use graph::TaskName;
use std::collections::BTreeMap;
use std::fmt;

/// The addresses (`host:port`) of a cluster by job and task index. The task indices of a job may be sparse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    jobs: BTreeMap<String, BTreeMap<u32, String>>,
}

impl Cluster {
    /// Creates a cluster without tasks.
    pub fn new() -> Cluster {
        Cluster::default()
    }

    /// Adds a task, or replaces its address.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed job name or address.
    pub fn insert(&mut self, job: &str, task: u32, address: &str) -> Result<(), Status> {
        check_job(job)?;
        check_address(job, task, address)?;
        self.jobs.entry(job.to_owned()).or_default().insert(task, address.to_owned());
        Ok(())
    }

    /// Parses `ps=h:p,h:p;worker=h:p`: jobs separated by semicolons, tasks by commas. The index of a task is
    /// its position, or is given before its address: `worker=3@h:p`; the next task then continues from that
    /// index.
    ///
    /// # Errors
    /// `InvalidArgument` naming the malformed part.
    pub fn parse(text: &str) -> Result<Cluster, Status> {
        let mut cluster = Cluster::new();
        for part in text.split([';', '\n']).map(str::trim).filter(|p| !p.is_empty()) {
            let (job, tasks) = part.split_once('=').ok_or_else(|| {
                Status::invalid(format!("'{part}' is no job of a cluster: expected name=host:port,…"))
            })?;
            let job = job.trim();
            if cluster.jobs.contains_key(job) {
                return Err(Status::invalid(format!("job '{job}' stands twice in the cluster")));
            }
            let mut next = 0u32;
            for task in tasks.split(',').map(str::trim) {
                let (index, address) = match task.split_once('@') {
                    Some((index, address)) => (parse_index(job, index)?, address),
                    None => (next, task),
                };
                cluster.insert_new(job, index, address)?;
                next = index.saturating_add(1);
            }
        }
        Ok(cluster)
    }

    /// Makes the cluster that a `ClusterDef` describes.
    pub fn from_def(def: &pb::ClusterDef) -> Result<Cluster, Status> {
        let mut cluster = Cluster::new();
        for job in &def.job {
            for (&index, address) in &job.tasks {
                let index = u32::try_from(index).map_err(|_| {
                    Status::invalid(format!("task index {index} of job '{}' is negative", job.name))
                })?;
                cluster.insert_once(&job.name, index, address)?;
            }
        }
        Ok(cluster)
    }

    /// Converts the cluster to a `ClusterDef`.
    pub fn to_def(&self) -> pb::ClusterDef {
        let job = self.jobs.iter().map(|(name, tasks)| pb::JobDef {
            name: name.clone(),
            tasks: tasks.iter().map(|(&index, address)| (index as i32, address.clone())).collect(),
        });
        pb::ClusterDef { job: job.collect() }
    }

    /// Reads a cluster from user input: in the form of [`Cluster::parse`], as JSON of its jobs, or as a whole
    /// `TF_CONFIG`, which may also name a task.
    ///
    /// # Errors
    /// The errors of [`Cluster::parse`] and [`Cluster::from_tf_config`].
    pub fn read(text: &str) -> Result<(Cluster, Option<TaskName>), Status> {
        if !text.trim_start().starts_with('{') {
            return Ok((Cluster::parse(text)?, None));
        }
        let json = json(text)?;
        match json.get("cluster") {
            // Only in a `TF_CONFIG` is "cluster" an object; the value of a job with this name would be a list.
            Some(serde_json::Value::Object(_)) => Cluster::from_config(&json),
            _ => Ok((Cluster::from_jobs(&json)?, None)),
        }
    }

    /// Reads a `TF_CONFIG` value: its `cluster` object, whose jobs are lists or maps of addresses, and its
    /// `task`, if it names one.
    ///
    /// # Errors
    /// `InvalidArgument` for text that is not JSON of that form.
    pub fn from_tf_config(text: &str) -> Result<(Cluster, Option<TaskName>), Status> {
        Cluster::from_config(&json(text)?)
    }

    fn from_config(config: &serde_json::Value) -> Result<(Cluster, Option<TaskName>), Status> {
        let there = |key| config.get(key).filter(|value| !value.is_null());
        let cluster = there("cluster").map_or(Ok(Cluster::new()), Cluster::from_jobs)?;
        Ok((cluster, there("task").map(json_task).transpose()?))
    }

    fn from_jobs(jobs: &serde_json::Value) -> Result<Cluster, Status> {
        let object = jobs.as_object();
        let object =
            object.ok_or_else(|| Status::invalid(format!("the cluster is no object of jobs: {jobs}")))?;
        let mut cluster = Cluster::new();
        for (job, tasks) in object {
            cluster.insert_json(job, tasks)?;
        }
        Ok(cluster)
    }

    fn insert_json(&mut self, job: &str, tasks: &serde_json::Value) -> Result<(), Status> {
        use serde_json::Value;
        let address = |value: &Value| match value {
            Value::String(address) => Ok(address.clone()),
            other => Err(Status::invalid(format!("an address of job '{job}' is no text: {other}"))),
        };
        match tasks {
            Value::Array(list) => {
                for (index, value) in (0u32..).zip(list) {
                    self.insert_new(job, index, &address(value)?)?;
                }
            }
            Value::Object(map) => {
                for (index, value) in map {
                    self.insert_new(job, parse_index(job, index)?, &address(value)?)?;
                }
            }
            Value::String(one) => self.insert_new(job, 0, one)?,
            other => {
                return Err(Status::invalid(format!("the tasks of job '{job}' are no list or map: {other}")));
            }
        }
        Ok(())
    }

    /// Adds a task from user input, whose address must name a single process.
    fn insert_new(&mut self, job: &str, index: u32, address: &str) -> Result<(), Status> {
        check_one(job, index, address)?;
        self.insert_once(job, index, address)
    }

    /// Adds a task; fails if the cluster already has the task.
    fn insert_once(&mut self, job: &str, index: u32, address: &str) -> Result<(), Status> {
        if self.address_of(job, index).is_some() {
            return Err(Status::invalid(format!("task {index} of job '{job}' stands twice in the cluster")));
        }
        self.insert(job, index, address)
    }

    fn address_of(&self, job: &str, task: u32) -> Option<&str> {
        Some(self.jobs.get(job)?.get(&task)?.as_str())
    }

    /// Returns the address of a task.
    pub fn address(&self, task: &TaskName) -> Option<&str> {
        if task.replica != 0 { None } else { self.address_of(&task.job, task.task) }
    }

    /// Iterates over all tasks by job and index.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskName, &str)> {
        self.jobs.iter().flat_map(|(job, tasks)| {
            tasks.iter().map(move |(&index, address)| (TaskName::new(job, index), address.as_str()))
        })
    }

    /// Returns whether another task of the cluster has the same host in its address as `task`.
    pub fn shares_host(&self, task: &TaskName) -> bool {
        let host = |address: &str| address.rsplit_once(':').map(|(host, _)| host.to_owned());
        let own: Vec<_> = self.address(task).into_iter().flat_map(addresses).filter_map(host).collect();
        let is_own = |address: &str| host(address).is_some_and(|host| own.contains(&host));
        self.tasks().any(|(other, all)| other != *task && addresses(all).any(is_own))
    }

    /// Returns the cluster in which two processes serve each task of a job. The first half of the job's
    /// addresses become the primaries, and the second half their standbys, in the same order.
    ///
    /// # Errors
    /// `InvalidArgument` if the number of addresses is odd, or the task indices do not count up from 0.
    pub fn with_standbys(mut self, job: &str) -> Result<Cluster, Status> {
        let tasks =
            self.jobs.get_mut(job).ok_or_else(|| Status::invalid(format!("there is no job '{job}'")))?;
        let count = tasks.len();
        if count % 2 != 0 || tasks.keys().copied().ne((0..).take(count)) {
            return Err(Status::invalid(format!(
                "job '{job}' has {count} addresses: with standbys there are two of each task, first all tasks', then \
                 their standbys'"
            )));
        }
        let all: Vec<String> = std::mem::take(tasks).into_values().collect();
        let (own, standbys) = all.split_at(count / 2);
        *tasks =
            (0..).zip(own.iter().zip(standbys).map(|(own, standby)| format!("{own}{OR}{standby}"))).collect();
        Ok(self)
    }

    /// Iterates over the names of the jobs.
    pub fn jobs(&self) -> impl Iterator<Item = &str> {
        self.jobs.keys().map(String::as_str)
    }

    /// Returns the number of tasks.
    pub fn len(&self) -> usize {
        self.jobs.values().map(BTreeMap::len).sum()
    }

    /// Returns whether the cluster has no tasks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Formats the cluster in the form that [`Cluster::parse`] reads.
impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (job, tasks)) in self.jobs.iter().enumerate() {
            write!(f, "{}{job}=", if i == 0 { "" } else { ";" })?;
            let mut next = 0u32;
            for (j, (&index, address)) in tasks.iter().enumerate() {
                f.write_str(if j == 0 { "" } else { "," })?;
                if index != next {
                    write!(f, "{index}@")?;
                }
                f.write_str(address)?;
                next = index.saturating_add(1);
            }
        }
        Ok(())
    }
}

fn json(text: &str) -> Result<serde_json::Value, Status> {
    serde_json::from_str(text).map_err(|e| Status::invalid(format!("this is not JSON: {e}")))
}

fn json_task(task: &serde_json::Value) -> Result<TaskName, Status> {
    let wrong = || Status::invalid(format!("the task needs a type and an index: {task}"));
    let job = task.get("type").and_then(|t| t.as_str()).ok_or_else(wrong)?;
    check_job(job)?;
    let index = match task.get("index") {
        None => 0,
        Some(serde_json::Value::String(text)) => parse_index(job, text)?,
        Some(number) => number
            .as_u64()
            .and_then(|n| u32::try_from(n).ok())
            .filter(|&n| n <= i32::MAX as u32)
            .ok_or_else(wrong)?,
    };
    Ok(TaskName::new(job, index))
}

fn parse_index(job: &str, text: &str) -> Result<u32, Status> {
    text.trim()
        .parse::<u32>()
        .ok()
        .filter(|&n| n <= i32::MAX as u32)
        .ok_or_else(|| Status::invalid(format!("'{text}' is no task index of job '{job}'")))
}

fn check_job(job: &str) -> Result<(), Status> {
    let mut bytes = job.bytes();
    let good = bytes.next().is_some_and(|b| b.is_ascii_alphabetic())
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if good { Ok(()) } else { Err(Status::invalid(format!("'{job}' is no job name"))) }
}

/// The separator between the addresses of the processes that may serve a task.
const OR: char = '|';

/// Returns the addresses of the processes that may serve a task, from its address in a [`Cluster`]. One of
/// them accepts connections.
pub fn addresses(address: &str) -> impl Iterator<Item = &str> {
    address.split(OR)
}

fn check_address(job: &str, task: u32, all: &str) -> Result<(), Status> {
    addresses(all).try_for_each(|address| check_one(job, task, address))
}

fn check_one(job: &str, task: u32, address: &str) -> Result<(), Status> {
    let wrong = || Status::invalid(format!("'{address}' is no host:port, for task {task} of job '{job}'"));
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host_is_good = match bare {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && !host.contains([':', '/', '@', '?', '#', ' ', ',', ';', '=', OR]),
    };
    match port.parse::<u16>() {
        Ok(_) if host_is_good => Ok(()),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_text_round_trips() -> Result<(), Status> {
        for text in ["ps=a:1,b:2;worker=c:3", "worker=2@a:1,b:2,7@c:3", "ps=[::1]:2222", ""] {
            assert_eq!(Cluster::parse(text)?.to_string(), text);
        }
        let cluster = Cluster::parse(" worker = a:1 , b:2 ; ")?;
        assert_eq!(cluster.address(&TaskName::new("worker", 1)), Some("b:2"));
        assert_eq!(cluster.address(&TaskName::new("worker", 2)), None);
        assert_eq!(Cluster::from_def(&cluster.to_def())?, cluster);
        Ok(())
    }

    #[test]
    fn a_task_and_its_standby_share_an_entry() -> Result<(), Status> {
        let cluster = Cluster::parse("ps=a:1,b:2,c:3,d:4;worker=e:5")?.with_standbys("ps")?;
        assert_eq!(cluster.to_string(), "ps=a:1|c:3,b:2|d:4;worker=e:5");
        assert_eq!(Cluster::from_def(&cluster.to_def())?, cluster);
        let second = TaskName::new("ps", 1);
        assert_eq!(cluster.address(&second).map(|a| addresses(a).collect()), Some(vec!["b:2", "d:4"]));
        assert!(!cluster.shares_host(&second));
        assert!(Cluster::parse("ps=a:1,b:2,c:3,b:4")?.with_standbys("ps")?.jobs().eq(["ps"]));
        for text in ["ps=a:1", "ps=0@a:1,2@b:1", "worker=a:1,b:1"] {
            assert!(Cluster::parse(text)?.with_standbys("ps").is_err(), "{text}");
        }
        Ok(())
    }

    #[test]
    fn malformed_clusters_are_refused() {
        for text in [
            "ps",
            "ps=",
            "ps=a",
            "ps=a:x",
            "ps=a:70000",
            "p s=a:1",
            "=a:1",
            "ps=a:1;ps=b:1",
            "ps=0@a:1,0@b:1",
            "ps=::1:5",
            // Two addresses for one task are refused in user input.
            "ps=a:1|b:1",
        ] {
            assert!(Cluster::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tf_config_is_read_with_lists_and_maps() -> Result<(), Status> {
        let (cluster, task) = Cluster::from_tf_config(
            r#"{"cluster": {"ps": ["a:1"], "worker": {"3": "b:2", "10": "c:3"}},
                "task": {"type": "worker", "index": "3"}, "environment": "cloud"}"#,
        )?;
        assert_eq!(cluster.to_string(), "ps=a:1;worker=3@b:2,10@c:3");
        assert_eq!(task, Some(TaskName::new("worker", 3)));
        assert!(Cluster::from_tf_config("{").is_err());
        assert!(Cluster::from_tf_config(r#"{"cluster": {"ps": [1]}}"#).is_err());
        assert!(Cluster::from_tf_config(r#"{"task": {"type": "ps", "index": -1}}"#).is_err());
        Ok(())
    }

    #[test]
    fn a_cluster_is_read_in_every_form() -> Result<(), Status> {
        let expected = "cluster=d:4;ps=a:1;worker=b:2,c:3";
        let jobs = r#"{"ps": ["a:1"], "worker": {"0": "b:2", "1": "c:3"}, "cluster": ["d:4"]}"#;
        for (text, task) in [
            (expected.to_owned(), None),
            (format!(" {jobs}"), None),
            (format!(r#"{{"cluster": {jobs}}}"#), None),
            (
                format!(r#"{{"cluster": {jobs}, "task": {{"type": "ps", "index": 0}}}}"#),
                Some(TaskName::new("ps", 0)),
            ),
        ] {
            let (cluster, named_task) = Cluster::read(&text)?;
            assert_eq!((cluster.to_string(), named_task), (expected.to_owned(), task), "{text}");
        }
        for text in [r#"{"ps": ["a:1"]"#, r#"{"ps": 3}"#, r#"{"ps": ["a"]}"#, r#"["a:1"]"#] {
            assert!(Cluster::read(text).is_err(), "{text}");
        }
        Ok(())
    }
}
