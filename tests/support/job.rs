//! A job of replicas that are processes, while something happens to them.

use super::Fallible;
use super::cluster::{Cluster, Program};
use super::folder::Folder;
use super::relay::{Link, Relay};
use super::replica::{ELECTION, ORDERS, Orders, PATIENCE, replica};
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

pub struct Job {
    pub cluster: Cluster,
    pub orders: Orders,
    folder: Folder,
    observer: Observer,
    /// Of each task to each other; none where they reach each other directly.
    relays: BTreeMap<(Task, Task), Relay>,
    /// Carries the relays.
    _runtime: Runtime,
}

pub const SERVERS: usize = 2;

/// The global step alone: where the replicas are is nothing to it.
struct Observer {
    graph: Graph,
    step: Output,
    /// Of all variables.
    names: Vec<String>,
}

impl Observer {
    fn new(orders: &Orders) -> Fallible<Observer> {
        let all = replica(0, orders.sync())?;
        let step = all.training.global_step;
        let graph = prune(&all.graph, &[step.node])?;
        let step = graph.find(&all.graph.node(step.node).name).ok_or("the step was pruned")?.into();
        Ok(Observer { graph, step, names: all.names })
    }
}

impl Job {
    /// Starts two parameter servers and so many replicas; `through_relays` all that they say to each other can be cut.
    ///
    /// `entry` is the test of this program that calls [`live_if_asked`](super::replica::live_if_asked).
    pub fn start(
        name: &str,
        entry: &str,
        orders: impl FnOnce(&mut Orders),
        through_relays: bool,
    ) -> Fallible<Job> {
        let folder = Folder::new(name)?;
        let transport = if through_relays { Transport::Grpc } else { Transport::Auto };
        let mut told = Orders {
            folder: folder.path().to_owned(),
            workers: 2,
            last_step: 60,
            lease: Duration::from_millis(600),
            pause: Duration::from_millis(5),
            transport,
        };
        orders(&mut told);
        let orders = told;
        let workers = orders.workers as usize;
        let mut cluster = Cluster::reserve(&[("ps", SERVERS), ("worker", workers), ("master", 1)])?;
        for flag in ["--connect-deadline", "2", "--transport", &orders.transport.to_string()] {
            cluster.flag(flag);
        }
        let arguments = [entry, "--exact", "--nocapture", "--quiet"].map(str::to_owned).to_vec();
        let environment =
            vec![(ORDERS.to_owned(), orders.to_text()), ("RUST_LOG".to_owned(), "info".to_owned())];
        let path = std::env::current_exe()?;
        cluster.run("worker", Program { path, arguments, environment });
        let runtime = Runtime::new()?;
        let mut relays = BTreeMap::new();
        let tasks = || (0..SERVERS).map(|i| ("ps", i)).chain((0..workers).map(|i| ("worker", i)));
        for from in tasks().filter(|_| through_relays) {
            for to in tasks().filter(|to| *to != from) {
                let relay = Relay::start(runtime.handle(), cluster.address(to.0, to.1))?;
                cluster.reach(from, to, relay.address);
                relays.insert((from, to), relay);
            }
        }
        for (job, index) in tasks().chain([("master", 0)]) {
            cluster.spawn(job, index)?;
        }
        cluster.wait_until_listening("master", 0)?;
        let observer = Observer::new(&orders)?;
        Ok(Job { cluster, orders, folder, observer, relays, _runtime: runtime })
    }

    /// What is between two tasks, in both directions.
    pub fn set_link(&self, a: Task, b: Task, link: Link) {
        for pair in [(a, b), (b, a)] {
            if let Some(relay) = self.relays.get(&pair) {
                relay.set(link);
            }
        }
    }

    /// The global step, if somebody can tell within a second.
    pub fn step(&self) -> Option<i64> {
        let options = SessionOptions { deadline: Some(Duration::from_secs(1)), ..SessionOptions::default() };
        let session =
            Session::connect(&self.cluster.target("master", 0), self.observer.graph.clone(), options);
        let read = session.ok()?.step().fetch(self.observer.step).timeout(Duration::from_secs(1)).run();
        read.ok()?.values.first()?.item().ok()
    }

    /// Waits until the job has done so many steps.
    pub fn until_step(&self, step: i64) -> Fallible {
        self.until(&format!("step {step}"), || Ok(self.step().is_some_and(|now| now >= step).then_some(())))
    }

    /// The chief's term and its worker, once one of the replicas leads in a term above this.
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
        Ok((0..self.orders.workers as usize).find(is_leader).map(|worker| (term, worker)))
    }

    fn until<T>(&self, what: &str, look: impl Fn() -> Fallible<Option<T>>) -> Fallible<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if Instant::now() > deadline {
                return Err(format!("{what} did not come").into());
            }
            thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// Whether all replicas have ended.
    pub fn is_over(&mut self) -> Fallible<bool> {
        for worker in 0..self.orders.workers as usize {
            if self.cluster.is_running("worker", worker)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until all replicas have ended well; the variables in the checkpoint that they leave.
    pub fn end(&mut self, patience: Duration) -> Fallible<Vec<Tensor>> {
        let deadline = Instant::now() + patience;
        for worker in 0..self.orders.workers as usize {
            let left = deadline.saturating_duration_since(Instant::now());
            let status = self.cluster.wait_for("worker", worker, left)?;
            if !status.success() {
                return Err(format!("worker {worker} ended with {status}").into());
            }
        }
        let newest = latest_checkpoint(self.folder.path())?.ok_or("the job has left no checkpoint")?;
        let mut reader = Reader::open(newest)?;
        self.observer.names.iter().map(|name| Ok(reader.read(name.as_bytes())?)).collect()
    }

    /// What all tasks have logged, for whoever looks for the cause of a failure.
    pub fn logs(&self) -> String {
        let tasks =
            (0..SERVERS).map(|i| ("ps", i)).chain((0..self.orders.workers as usize).map(|i| ("worker", i)));
        tasks
            .map(|(job, index)| {
                let log = self.cluster.log(job, index).unwrap_or_else(|e| e.to_string());
                format!("--- /job:{job}/task:{index}\n{log}\n")
            })
            .collect()
    }
}
