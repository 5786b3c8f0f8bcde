//! Clusters of server processes on this machine, and free ports for them.

use super::Fallible;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;

/// Longest time that a task may take to listen, or to end after a signal.
const DEADLINE: Duration = Duration::from_secs(20);

/// The processes of a cluster. Dropping it kills the processes that still run and deletes their log files.
#[derive(Debug)]
pub struct Cluster {
    addresses: BTreeMap<String, Vec<SocketAddr>>,
    running: BTreeMap<TaskKey, Child>,
    flags: Vec<String>,
    /// Programs that the tasks of a job run instead of a server, by job.
    programs: BTreeMap<String, Program>,
    /// Addresses that override those of the cluster spec, by the task that reads the spec and the task to connect to.
    routes: BTreeMap<(TaskKey, TaskKey), SocketAddr>,
}

/// A job's name and the index of a task in it.
type TaskKey = (String, usize);

/// A program that a task runs. The task's `TF_CONFIG` is added to its environment.
#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl Cluster {
    /// Starts a cluster of `jobs`, each given by its name and its number of tasks, and waits until all tasks listen.
    pub fn start(jobs: &[(&str, usize)]) -> Fallible<Cluster> {
        Cluster::start_with(jobs, &[])
    }

    /// Starts a cluster like [`Cluster::start`], and passes `flags` to every process.
    pub fn start_with(jobs: &[(&str, usize)], flags: &[&str]) -> Fallible<Cluster> {
        let mut cluster = Cluster::reserve(jobs)?;
        cluster.flags = flags.iter().map(|f| (*f).to_owned()).collect();
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

    /// Chooses an address for each task without starting a process.
    pub fn reserve(jobs: &[(&str, usize)]) -> Fallible<Cluster> {
        let mut addresses = BTreeMap::new();
        for (job, count) in jobs {
            addresses.insert((*job).to_owned(), (0..*count).map(|_| free_port()).collect::<Fallible<_>>()?);
        }
        let (running, flags) = (BTreeMap::new(), Vec::new());
        Ok(Cluster { addresses, running, flags, programs: BTreeMap::new(), routes: BTreeMap::new() })
    }

    /// Adds a flag for all processes that are started later.
    pub fn add_flag(&mut self, flag: &str) {
        self.flags.push(flag.to_owned());
    }

    /// Replaces the flags of all processes that are started later.
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// Sets the program that tasks of `job` run when they are started later.
    pub fn set_program(&mut self, job: &str, program: Program) {
        self.programs.insert(job.to_owned(), program);
    }

    /// Sets the address of the task `to` in the cluster spec that the task `from` gets when it is started later.
    pub fn set_route(&mut self, from: (&str, usize), to: (&str, usize), address: SocketAddr) {
        let [from, to] = [from, to].map(|(job, index)| (job.to_owned(), index));
        self.routes.insert((from, to), address);
    }

    /// Returns the cluster spec for one task: the addresses of all tasks by job, as overridden by
    /// [`Cluster::set_route`].
    fn spec_for(&self, job: &str, index: usize) -> BTreeMap<&str, Vec<String>> {
        let own = (job.to_owned(), index);
        let route = |to: TaskKey, address: &SocketAddr| {
            self.routes.get(&(own.clone(), to)).unwrap_or(address).to_string()
        };
        let of_job = |(job, all): (&'_ String, &Vec<SocketAddr>)| {
            all.iter().enumerate().map(|(i, address)| route((job.clone(), i), address)).collect()
        };
        self.addresses.iter().map(|entry| (entry.0.as_str(), of_job(entry))).collect()
    }

    /// Starts or restarts one task, with its cluster spec, job and index in `TF_CONFIG`. A task of the job "master" runs
    /// a separate master, a task of any other job a worker, unless [`Cluster::set_program`] set its program.
    pub fn spawn(&mut self, job: &str, index: usize) -> Fallible {
        let cluster = self.spec_for(job, index);
        let config = serde_json::json!({"cluster": cluster, "task": {"type": job, "index": index}});
        let mut command = match self.programs.get(job) {
            Some(program) => {
                let mut command = Command::new(&program.path);
                command.args(&program.arguments).envs(program.environment.iter().cloned());
                command.stdout(Stdio::null());
                command
            }
            None => {
                let mut command = Command::new(program(job));
                command.args(&self.flags);
                command
            }
        };
        let child = command
            .env("TF_CONFIG", config.to_string())
            .stdin(Stdio::null())
            .stderr(File::options().create(true).append(true).open(self.log_file(job, index))?)
            .spawn()?;
        self.running.insert((job.to_owned(), index), child);
        Ok(())
    }

    /// Waits until a started task accepts connections; fails with its log if its process ends before.
    pub fn wait_until_listening(&mut self, job: &str, index: usize) -> Fallible {
        let address = self.address(job, index);
        let task = self.running.get_mut(&(job.to_owned(), index)).ok_or("not started")?;
        let deadline = Instant::now() + DEADLINE;
        while TcpStream::connect_timeout(&address, Duration::from_millis(100)).is_err() {
            if let Some(status) = task.try_wait()? {
                let log = self.log(job, index)?;
                return Err(format!("/job:{job}/task:{index} ended with {status}: {log}").into());
            }
            if Instant::now() > deadline {
                return Err(format!("/job:{job}/task:{index} does not listen on {address}").into());
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Returns the log of all processes that a task has run.
    pub fn log(&self, job: &str, index: usize) -> Fallible<String> {
        Ok(fs::read_to_string(self.log_file(job, index))?)
    }

    /// Returns the path of the file to which all processes of a task append their log.
    pub fn log_file(&self, job: &str, index: usize) -> PathBuf {
        let port = self.address(job, index).port();
        let name = format!("{job}-{index}-{}-{port}.log", std::process::id());
        super::folder::temporary().join(name)
    }

    /// Returns the resident memory of a task's process, in bytes.
    pub fn resident_bytes(&self, job: &str, index: usize) -> Fallible<u64> {
        let pid = self.pid(job, index).ok_or("not running")?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1024)
    }

    /// Returns the resident memory of all running processes together, in bytes.
    pub fn total_resident_bytes(&self) -> Fallible<u64> {
        self.running.keys().map(|(job, index)| self.resident_bytes(job, *index)).sum()
    }

    /// Returns the address that a task listens on, whether or not its process runs.
    pub fn address(&self, job: &str, index: usize) -> SocketAddr {
        self.addresses[job][index]
    }

    /// Returns the session target of a task, `grpc://HOST:PORT`.
    pub fn target(&self, job: &str, index: usize) -> String {
        format!("grpc://{}", self.address(job, index))
    }

    /// Returns the process id of a task that was started and not waited for.
    pub fn pid(&self, job: &str, index: usize) -> Option<u32> {
        self.running.get(&(job.to_owned(), index)).map(Child::id)
    }

    /// Kills a task with SIGKILL, as in a crash, and waits for its process.
    pub fn kill(&mut self, job: &str, index: usize) -> Fallible {
        let mut task = self.running.remove(&(job.to_owned(), index)).ok_or("not running")?;
        task.kill()?;
        task.wait()?;
        Ok(())
    }

    /// Sends a task SIGTERM and waits until its process has ended.
    pub fn stop(&mut self, job: &str, index: usize) -> Fallible<ExitStatus> {
        self.terminate(job, index)?;
        self.wait(job, index)
    }

    /// Sends a task SIGTERM.
    pub fn terminate(&self, job: &str, index: usize) -> Fallible {
        self.signal(job, index, "TERM")
    }

    /// Sends a task a signal by its name without "SIG", such as "STOP".
    pub fn signal(&self, job: &str, index: usize, signal: &str) -> Fallible {
        let pid = self.pid(job, index).ok_or("not running")?;
        let status = Command::new("kill").args(["-s", signal, &pid.to_string()]).status()?;
        if status.success() { Ok(()) } else { Err("kill failed".into()) }
    }

    /// Waits until a task's process has ended, for at most 20 s.
    pub fn wait(&mut self, job: &str, index: usize) -> Fallible<ExitStatus> {
        self.wait_for(job, index, DEADLINE)
    }

    /// Waits until a task's process has ended; kills it and fails after `patience`.
    pub fn wait_for(&mut self, job: &str, index: usize, patience: Duration) -> Fallible<ExitStatus> {
        let mut task = self.running.remove(&(job.to_owned(), index)).ok_or("not running")?;
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = task.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                task.kill()?;
                return Err(format!("/job:{job}/task:{index} did not stop within {patience:?}").into());
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// Returns whether the task's process still runs.
    pub fn is_running(&mut self, job: &str, index: usize) -> Fallible<bool> {
        let task = self.running.get_mut(&(job.to_owned(), index));
        Ok(task.map(Child::try_wait).transpose()?.is_some_and(|status| status.is_none()))
    }
}

/// Returns a free local address. Its port is below the range of ports of outgoing connections, so it stays free while
/// the task at this address is dead, even if other tasks keep connecting to it.
pub fn free_port() -> Fallible<SocketAddr> {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // The process id makes concurrent test processes search from different ports.
    let first = std::process::id().wrapping_mul(1_607);
    for _ in 0..COUNT {
        let port = FIRST + first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16));
        // The port is bound without listening: a child process that another thread starts at this moment would inherit
        // a listening socket and keep the port busy.
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        if socket.bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err("no port is free".into())
}

/// Returns the server program for a job's tasks, from this build or from the directory in `ANABRANCH_PROGRAMS`.
fn program(job: &str) -> PathBuf {
    let (name, built) = match job {
        "master" => ("anabranch-master", env!("CARGO_BIN_EXE_anabranch-master")),
        _ => ("anabranch-worker", env!("CARGO_BIN_EXE_anabranch-worker")),
    };
    std::env::var_os("ANABRANCH_PROGRAMS").map_or_else(|| built.into(), |dir| Path::new(&dir).join(name))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for task in self.running.values_mut() {
            // The error is ignored, because the process may have ended already.
            let _ = task.kill();
            let _ = task.wait();
        }
        for (job, all) in &self.addresses {
            for index in 0..all.len() {
                let _ = fs::remove_file(self.log_file(job, index));
            }
        }
    }
}
