//! Clusters of server processes on this machine.

use super::Fallible;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;

const DEADLINE: Duration = Duration::from_secs(20);

/// Running tasks; what still runs when it is dropped is killed.
#[derive(Debug)]
pub struct Cluster {
    addresses: BTreeMap<String, Vec<SocketAddr>>,
    running: BTreeMap<Place, Child>,
    flags: Vec<String>,
    /// What tasks of a job run instead of a server.
    programs: BTreeMap<String, Program>,
    /// Where a task finds another, if not at its address.
    routes: BTreeMap<(Place, Place), SocketAddr>,
}

/// A job and an index.
type Place = (String, usize);

/// What a task runs; its place in the cluster comes with it in `TF_CONFIG`.
#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl Cluster {
    /// Starts so many tasks of each job and waits until they listen.
    pub fn start(jobs: &[(&str, usize)]) -> Fallible<Cluster> {
        Cluster::start_with(jobs, &[])
    }

    /// As [`Cluster::start`], of processes with these flags.
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

    /// Chooses addresses without starting anything.
    pub fn reserve(jobs: &[(&str, usize)]) -> Fallible<Cluster> {
        let mut addresses = BTreeMap::new();
        for (job, count) in jobs {
            addresses.insert((*job).to_owned(), (0..*count).map(|_| free_port()).collect::<Fallible<_>>()?);
        }
        let (running, flags) = (BTreeMap::new(), Vec::new());
        Ok(Cluster { addresses, running, flags, programs: BTreeMap::new(), routes: BTreeMap::new() })
    }

    /// Processes that are started from now on get this flag.
    pub fn flag(&mut self, flag: &str) {
        self.flags.push(flag.to_owned());
    }

    /// Processes that are started from now on get these flags and no others.
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// Tasks of this job run this, from now on.
    pub fn run(&mut self, job: &str, program: Program) {
        self.programs.insert(job.to_owned(), program);
    }

    /// A task finds another one here; told to processes that are started from now on.
    pub fn reach(&mut self, from: (&str, usize), to: (&str, usize), address: SocketAddr) {
        let [from, to] = [from, to].map(|(job, index)| (job.to_owned(), index));
        self.routes.insert((from, to), address);
    }

    /// The cluster as a task sees it.
    fn seen_by(&self, job: &str, index: usize) -> BTreeMap<&str, Vec<String>> {
        let own = (job.to_owned(), index);
        let route = |to: Place, address: &SocketAddr| {
            self.routes.get(&(own.clone(), to)).unwrap_or(address).to_string()
        };
        let of_job = |(job, all): (&'_ String, &Vec<SocketAddr>)| {
            all.iter().enumerate().map(|(i, address)| route((job.clone(), i), address)).collect()
        };
        self.addresses.iter().map(|entry| (entry.0.as_str(), of_job(entry))).collect()
    }

    /// Starts (or starts again) one task, told its place by `TF_CONFIG`: tasks of a job "master" are masters by
    /// themselves, all others workers.
    pub fn spawn(&mut self, job: &str, index: usize) -> Fallible {
        let cluster = self.seen_by(job, index);
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

    /// What the task's processes have logged.
    pub fn log(&self, job: &str, index: usize) -> Fallible<String> {
        Ok(fs::read_to_string(self.log_file(job, index))?)
    }

    /// The file that the task's processes log to.
    pub fn log_file(&self, job: &str, index: usize) -> PathBuf {
        let port = self.address(job, index).port();
        let name = format!("{job}-{index}-{}-{port}.log", std::process::id());
        super::folder::temporary().join(name)
    }

    /// The task's resident memory, bytes.
    pub fn resident(&self, job: &str, index: usize) -> Fallible<u64> {
        let pid = self.pid(job, index).ok_or("not running")?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1024)
    }

    /// The resident memory of all tasks that run, bytes.
    pub fn resident_in_all(&self) -> Fallible<u64> {
        self.running.keys().map(|(job, index)| self.resident(job, *index)).sum()
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
        self.terminate(job, index)?;
        self.wait(job, index)
    }

    /// Tells a task to stop (SIGTERM).
    pub fn terminate(&self, job: &str, index: usize) -> Fallible {
        self.signal(job, index, "TERM")
    }

    /// Sends a task a signal, such as STOP.
    pub fn signal(&self, job: &str, index: usize, signal: &str) -> Fallible {
        let pid = self.pid(job, index).ok_or("not running")?;
        let told = Command::new("kill").args(["-s", signal, &pid.to_string()]).status()?;
        if told.success() { Ok(()) } else { Err("kill failed".into()) }
    }

    /// Waits until a task has ended.
    pub fn wait(&mut self, job: &str, index: usize) -> Fallible<ExitStatus> {
        self.wait_for(job, index, DEADLINE)
    }

    /// As [`Cluster::wait`], for so long; it is killed then.
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

    /// Whether the task's process still runs.
    pub fn is_running(&mut self, job: &str, index: usize) -> Fallible<bool> {
        let task = self.running.get_mut(&(job.to_owned(), index));
        Ok(task.map(Child::try_wait).transpose()?.is_some_and(|status| status.is_none()))
    }
}

/// An address whose port is below those that the system gives to connections: it stays free while its task is dead, however
/// often others try it.
pub fn free_port() -> Fallible<SocketAddr> {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that test side by side begin at different ones.
    let first = std::process::id().wrapping_mul(1_607);
    for _ in 0..COUNT {
        let port = FIRST + first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16));
        // Nothing listens meanwhile: a process that another thread is starting would keep that for a moment.
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        if socket.bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err("no port is free".into())
}

/// The program of a job's tasks: of this build, or of the directory that `ANABRANCH_PROGRAMS` names.
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
            // It may have ended already.
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
