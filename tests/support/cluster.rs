//! Clusters of server processes on this machine.

use super::Fallible;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(20);

/// Running tasks; what still runs when it is dropped is killed.
#[derive(Debug)]
pub struct Cluster {
    addresses: BTreeMap<String, Vec<SocketAddr>>,
    running: BTreeMap<(String, usize), Child>,
}

impl Cluster {
    /// Starts so many tasks of each job and waits until they listen.
    pub fn start(jobs: &[(&str, usize)]) -> Fallible<Cluster> {
        let mut cluster = Cluster::reserve(jobs)?;
        for (job, count) in jobs {
            for index in 0..*count {
                cluster.spawn(job, index)?;
            }
        }
        for (job, count) in jobs {
            for index in 0..*count {
                cluster.wait_until_listening(job, index)?;
            }
        }
        Ok(cluster)
    }

    /// Chooses addresses without starting anything.
    pub fn reserve(jobs: &[(&str, usize)]) -> Fallible<Cluster> {
        let mut held = Vec::new();
        let mut addresses = BTreeMap::new();
        for (job, count) in jobs {
            let mut of_job = Vec::new();
            for _ in 0..*count {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                of_job.push(listener.local_addr()?);
                held.push(listener);
            }
            addresses.insert((*job).to_owned(), of_job);
        }
        Ok(Cluster { addresses, running: BTreeMap::new() })
    }

    /// Starts (or starts again) one task, told its place by `TF_CONFIG`: tasks of a job "master" are masters by
    /// themselves, all others workers.
    pub fn spawn(&mut self, job: &str, index: usize) -> Fallible {
        let cluster: BTreeMap<&String, Vec<String>> = self
            .addresses
            .iter()
            .map(|(j, all)| (j, all.iter().map(SocketAddr::to_string).collect()))
            .collect();
        let config = serde_json::json!({"cluster": cluster, "task": {"type": job, "index": index}});
        let program = match job {
            "master" => env!("CARGO_BIN_EXE_anabranch-master"),
            _ => env!("CARGO_BIN_EXE_anabranch-worker"),
        };
        let child = Command::new(program)
            .env("TF_CONFIG", config.to_string())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        self.running.insert((job.to_owned(), index), child);
        Ok(())
    }

    pub fn wait_until_listening(&mut self, job: &str, index: usize) -> Fallible {
        let address = self.address(job, index);
        let task = self.running.get_mut(&(job.to_owned(), index)).ok_or("not started")?;
        let deadline = Instant::now() + DEADLINE;
        while TcpStream::connect_timeout(&address, Duration::from_millis(100)).is_err() {
            if let Some(status) = task.try_wait()? {
                let mut log = String::new();
                if let Some(stderr) = &mut task.stderr {
                    stderr.read_to_string(&mut log)?;
                }
                return Err(format!("/job:{job}/task:{index} ended with {status}: {log}").into());
            }
            if Instant::now() > deadline {
                return Err(format!("/job:{job}/task:{index} does not listen on {address}").into());
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
        Ok(())
    }

    pub fn address(&self, job: &str, index: usize) -> SocketAddr {
        self.addresses[job][index]
    }

    /// What a client connects to.
    pub fn target(&self, job: &str, index: usize) -> String {
        format!("grpc://{}", self.address(job, index))
    }

    pub fn pid(&self, job: &str, index: usize) -> Option<u32> {
        self.running.get(&(job.to_owned(), index)).map(Child::id)
    }

    /// Kills a task at once, as a crash would.
    pub fn kill(&mut self, job: &str, index: usize) -> Fallible {
        let mut task = self.running.remove(&(job.to_owned(), index)).ok_or("not running")?;
        task.kill()?;
        task.wait()?;
        Ok(())
    }

    /// Tells a task to stop (SIGTERM) and waits until it has.
    pub fn stop(&mut self, job: &str, index: usize) -> Fallible<ExitStatus> {
        let mut task = self.running.remove(&(job.to_owned(), index)).ok_or("not running")?;
        let told = Command::new("kill").arg(task.id().to_string()).status()?;
        if !told.success() {
            return Err("kill failed".into());
        }
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = task.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                task.kill()?;
                return Err(format!("/job:{job}/task:{index} did not stop within {DEADLINE:?}").into());
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// Whether the task's process still runs.
    pub fn is_running(&mut self, job: &str, index: usize) -> Fallible<bool> {
        let task = self.running.get_mut(&(job.to_owned(), index));
        Ok(task.map(Child::try_wait).transpose()?.is_some_and(|status| status.is_none()))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for task in self.running.values_mut() {
            // It may have ended already.
            let _ = task.kill();
            let _ = task.wait();
        }
    }
}
