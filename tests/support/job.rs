//! A training job whose replicas are processes, which tests can kill, stop or disconnect.

use super::Fallible;
use super::cluster::{Cluster, Program};
use super::folder::Folder;
use super::relay::{LinkState, Relay};
use super::replica::{CONFIG_VARIABLE, ELECTION, PATIENCE, ReplicaConfig, replica};
use anabranch::client::{Session, SessionOptions};
use anabranch::graph::passes::prune;
use anabranch::graph::{Graph, Output, Tensor};
use anabranch::train::latest_checkpoint;
use anabranch::worker::Transport;
use checkpoint::bundle::Reader;
use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// A task: its job and index.
pub type Task = (&'static str, usize);

/// The test that calls [`run_if_replica_process`](super::replica::run_if_replica_process); each test program that
/// starts jobs has it at its root.
const REPLICA_ENTRY: &str = "replica";

/// A running job of two parameter servers, several replicas, and a separate master through which tests observe the job.
pub struct Job {
    pub cluster: Cluster,
    pub config: ReplicaConfig,
    folder: Folder,
    observer: Observer,
    /// The relay of each (from, to) pair of tasks; empty if tasks connect directly.
    relays: BTreeMap<(Task, Task), Relay>,
    /// The runtime that runs the relays.
    _runtime: Runtime,
}

/// Number of parameter servers.
pub const SERVERS: usize = 2;

/// The observer's graph, which only reads the global step, so that its session needs no task of a replica.
struct Observer {
    graph: Graph,
    step: Output,
    /// Names of all variables of the replicas' model.
    names: Vec<String>,
}

impl Observer {
    fn new(config: &ReplicaConfig) -> Fallible<Observer> {
        let all = replica(0, config.sync())?;
        let step = all.training.global_step;
        let graph = prune(&all.graph, &[step.node])?;
        let step = graph.find(&all.graph.node(step.node).name).ok_or("the step was pruned")?.into();
        Ok(Observer { graph, step, names: all.names })
    }
}

impl Job {
    /// Starts the parameter servers, replicas and master of a job whose default configuration `configure` may change.
    /// If `through_relays` is true, tasks connect through relays, so that tests can cut the connections.
    pub fn start(
        name: &str,
        configure: impl FnOnce(&mut ReplicaConfig),
        through_relays: bool,
    ) -> Fallible<Job> {
        let folder = Folder::new(name)?;
        let transport = if through_relays { Transport::Grpc } else { Transport::Auto };
        let mut config = ReplicaConfig {
            folder: folder.path().to_owned(),
            workers: 2,
            last_step: 60,
            lease: Duration::from_millis(600),
            pause: Duration::from_millis(5),
            transport,
        };
        configure(&mut config);
        let workers = config.workers as usize;
        let mut cluster = Cluster::reserve(&[("ps", SERVERS), ("worker", workers), ("master", 1)])?;
        for flag in ["--connect-deadline", "2", "--transport", &config.transport.to_string()] {
            cluster.add_flag(flag);
        }
        let arguments = [REPLICA_ENTRY, "--exact", "--nocapture", "--quiet"].map(str::to_owned).to_vec();
        let environment =
            vec![(CONFIG_VARIABLE.to_owned(), config.to_text()), ("RUST_LOG".to_owned(), "info".to_owned())];
        let path = std::env::current_exe()?;
        cluster.set_program("worker", Program { path, arguments, environment });
        let runtime = Runtime::new()?;
        let mut relays = BTreeMap::new();
        let tasks = || (0..SERVERS).map(|i| ("ps", i)).chain((0..workers).map(|i| ("worker", i)));
        for from in tasks().filter(|_| through_relays) {
            for to in tasks().filter(|to| *to != from) {
                let relay = Relay::start(runtime.handle(), cluster.address(to.0, to.1))?;
                cluster.set_route(from, to, relay.address);
                relays.insert((from, to), relay);
            }
        }
        for (job, index) in tasks().chain([("master", 0)]) {
            cluster.spawn(job, index)?;
        }
        cluster.wait_until_listening("master", 0)?;
        let observer = Observer::new(&config)?;
        Ok(Job { cluster, config, folder, observer, relays, _runtime: runtime })
    }

    /// Sets the state of the connections between two tasks, in both directions.
    pub fn set_link(&self, a: Task, b: Task, link: LinkState) {
        for pair in [(a, b), (b, a)] {
            if let Some(relay) = self.relays.get(&pair) {
                relay.set(link);
            }
        }
    }

    /// Returns the global step, or `None` if the parameter servers do not answer within a second.
    pub fn step(&self) -> Option<i64> {
        let options = SessionOptions { deadline: Some(Duration::from_secs(1)), ..SessionOptions::default() };
        let session =
            Session::connect(&self.cluster.target("master", 0), self.observer.graph.clone(), options);
        let read = session.ok()?.step().fetch(self.observer.step).timeout(Duration::from_secs(1)).run();
        read.ok()?.values.first()?.item().ok()
    }

    /// Waits until the global step is at least `step`.
    pub fn until_step(&self, step: i64) -> Fallible {
        self.until(&format!("step {step}"), || Ok(self.step().is_some_and(|now| now >= step).then_some(())))
    }

    /// Waits for a chief whose term is above `after`; returns the term and the index of the chief's worker.
    pub fn until_chief(&self, after: i64) -> Fallible<(i64, usize)> {
        self.until(&format!("a chief after term {after}"), || {
            Ok(self.chief()?.filter(|(term, _)| *term > after))
        })
    }

    fn chief(&self) -> Fallible<Option<(i64, usize)>> {
        let mut newest = None;
        for entry in fs::read_dir(self.folder.path())? {
            let entry = entry?;
            let name = entry.file_name();
            let term =
                name.to_str().and_then(|n| n.strip_prefix(ELECTION)?.strip_prefix('.')?.parse::<i64>().ok());
            if let Some(term) = term {
                newest = newest.max(Some((term, fs::read_to_string(entry.path()).unwrap_or_default())));
            }
        }
        let Some((term, text)) = newest else { return Ok(None) };
        let is_leader = |worker: &usize| {
            let pid = self.cluster.pid("worker", *worker);
            pid.is_some_and(|pid| text.trim() == format!("process {pid}"))
        };
        Ok((0..self.config.workers as usize).find(is_leader).map(|worker| (term, worker)))
    }

    /// Polls `look` until it returns a value; `event` names the awaited event in the error.
    fn until<T>(&self, event: &str, look: impl Fn() -> Fallible<Option<T>>) -> Fallible<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if Instant::now() > deadline {
                return Err(format!("waited for {event} in vain for {PATIENCE:?}").into());
            }
            thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// Returns whether all replicas have ended.
    pub fn has_ended(&mut self) -> Fallible<bool> {
        for worker in 0..self.config.workers as usize {
            if self.cluster.is_running("worker", worker)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until all replicas have ended successfully; returns the variables of the newest checkpoint.
    pub fn finish(&mut self, patience: Duration) -> Fallible<Vec<Tensor>> {
        let deadline = Instant::now() + patience;
        for worker in 0..self.config.workers as usize {
            let left = deadline.saturating_duration_since(Instant::now());
            let status = self.cluster.wait_for("worker", worker, left)?;
            if !status.success() {
                return Err(format!("worker {worker} ended with {status}").into());
            }
        }
        let newest = latest_checkpoint(self.folder.path())?.ok_or("the job has written no checkpoint")?;
        let mut reader = Reader::open(newest)?;
        self.observer.names.iter().map(|name| Ok(reader.read(name.as_bytes())?)).collect()
    }

    /// Returns the logs of all tasks, for error messages.
    pub fn logs(&self) -> String {
        let tasks =
            (0..SERVERS).map(|i| ("ps", i)).chain((0..self.config.workers as usize).map(|i| ("worker", i)));
        tasks
            .map(|(job, index)| {
                let log = self.cluster.log(job, index).unwrap_or_else(|e| e.to_string());
                format!("--- /job:{job}/task:{index}\n{log}\n")
            })
            .collect()
    }
}
