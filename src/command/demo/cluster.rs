//! A local cluster whose tasks are separate processes, which end with this process.

use client::process_group::LaunchedTask;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;

/// Time after the start of a task at which the task counts as failed if it does not listen yet.
const START_DEADLINE: Duration = Duration::from_secs(10);

/// Time after which a task that was asked to stop is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Cluster {
    tasks: Vec<Task>,
    workers: Vec<SocketAddr>,
    /// Holds the port of a task until its process has bound it.
    _held: Option<TcpSocket>,
}

#[derive(Debug)]
struct Task {
    name: String,
    process: Child,
}

impl Cluster {
    /// Starts the tasks and waits until all of them listen.
    pub(super) fn start(ps: u32, workers: u32) -> Result<Cluster, Box<dyn Error + Send + Sync>> {
        let ports = free_ports((ps + workers) as usize)?;
        let addresses: Vec<SocketAddr> = ports.into_iter().map(|p| (Ipv4Addr::LOCALHOST, p).into()).collect();
        let (of_ps, of_workers) = addresses.split_at(ps as usize);
        let joined = |all: &[SocketAddr]| all.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
        let jobs = [("ps", of_ps), ("worker", of_workers)].into_iter().filter(|(_, all)| !all.is_empty());
        let text = jobs.map(|(job, all)| format!("{job}={}", joined(all))).collect::<Vec<_>>().join(";");
        let mut cluster = Cluster { tasks: Vec::new(), workers: of_workers.to_vec(), _held: None };
        for (job, count) in [("ps", ps), ("worker", workers)] {
            for index in 0..count {
                cluster.tasks.push(Task::start(&text, job, index)?);
            }
        }
        for (task, address) in cluster.tasks.iter_mut().zip(&addresses) {
            task.wait_until_listening(*address)?;
        }
        Ok(cluster)
    }

    /// Starts the task of this process in the cluster that the processes of a launcher form, and waits until it listens.
    pub(super) fn start_launched(launched: LaunchedTask) -> Result<Cluster, Box<dyn Error + Send + Sync>> {
        let LaunchedTask { cluster: all, task, socket } = launched;
        let address: SocketAddr = all.address(&task).unwrap_or_default().parse()?;
        let started = Task::start(&all.to_string(), &task.job, task.task)?;
        let mut cluster = Cluster { tasks: vec![started], workers: vec![address], _held: Some(socket) };
        for task in &mut cluster.tasks {
            task.wait_until_listening(address)?;
        }
        Ok(cluster)
    }

    /// Returns the targets by which clients connect to the workers' masters.
    pub(super) fn targets(&self) -> Vec<String> {
        self.workers.iter().map(|address| format!("grpc://{address}")).collect()
    }

    pub(super) fn describe(&self) -> String {
        let tasks = self.tasks.iter().map(|t| format!("{} (pid {})", t.name, t.process.id()));
        tasks.collect::<Vec<_>>().join(", ")
    }

    /// Stops every task and waits until it has ended.
    pub(super) fn stop(mut self) -> Result<(), Box<dyn Error + Send + Sync>> {
        for task in &self.tasks {
            task.terminate()?;
        }
        let deadline = Instant::now() + STOP_DEADLINE;
        for task in &mut self.tasks {
            let status = loop {
                match task.process.try_wait()? {
                    Some(status) => break status,
                    None if Instant::now() > deadline => {
                        return Err(format!("{} did not stop within {STOP_DEADLINE:?}", task.name).into());
                    }
                    None => std::thread::park_timeout(Duration::from_millis(5)),
                }
            };
            if !status.success() {
                return Err(format!("{} ended with {status}", task.name).into());
            }
        }
        Ok(())
    }
}

/// Kills the tasks that still run, which happens only after an error.
impl Drop for Cluster {
    fn drop(&mut self) {
        for task in &mut self.tasks {
            if let Ok(None) = task.process.try_wait() {
                // The error is ignored, because the task may have ended meanwhile.
                let _ = task.process.kill();
                let _ = task.process.wait();
            }
        }
    }
}

impl Task {
    fn start(cluster: &str, job: &str, index: u32) -> Result<Task, Box<dyn Error + Send + Sync>> {
        let gpus = if job == "ps" { "none" } else { "all" };
        let process = Command::new(std::env::current_exe()?)
            .args(["worker", "--cluster", cluster, "--job", job, "--task", &index.to_string()])
            .args(["--gpus", gpus, "--stop-with-stdin"])
            .env_remove("TF_CONFIG")
            .env("RUST_LOG", "warn")
            // The pipe closes when this process ends, even if a launcher kills it, and the task then stops.
            .stdin(Stdio::piped())
            .spawn()?;
        Ok(Task { name: format!("/job:{job}/task:{index}"), process })
    }

    fn wait_until_listening(&mut self, address: SocketAddr) -> Result<(), Box<dyn Error + Send + Sync>> {
        let deadline = Instant::now() + START_DEADLINE;
        while TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_err() {
            if let Some(status) = self.process.try_wait()? {
                return Err(format!("{} ended at once: {status}", self.name).into());
            }
            if Instant::now() > deadline {
                return Err(
                    format!("{} does not listen on {address} after {START_DEADLINE:?}", self.name).into()
                );
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Ok(())
    }

    fn terminate(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        let killed = Command::new("kill").arg(self.process.id().to_string()).status()?;
        if killed.success() { Ok(()) } else { Err(format!("{} could not be stopped", self.name).into()) }
    }
}

/// Returns ports that are currently free.
fn free_ports(count: usize) -> Result<Vec<u16>, Box<dyn Error + Send + Sync>> {
    let held =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<Vec<_>, _>>()?;
    Ok(held.iter().map(|l| l.local_addr().map(|a| a.port())).collect::<Result<_, _>>()?)
}
