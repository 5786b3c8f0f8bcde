//! Runs a task of a cluster as a process: listens, answers calls until it is stopped, and lets running steps end before
//! it exits.

use crate::adaptive_spin::AdaptiveSpin;
use crate::gpu_flags::{self, GpuFlags};
use crate::server_options::ServerOptions;
use crate::task_flags::{Replica, TaskIdentity};
use crate::{TaskFlags, allocator};
use client::{Server, ServerConfig};
use graph::TaskName;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use worker::{Standby, Transport};

/// The flags of a server process.
#[derive(Clone, Debug, clap::Args)]
pub struct ServeFlags {
    #[command(flatten)]
    pub place: TaskFlags,

    /// The address to listen on. By default the host that the cluster names for this task, or all interfaces if that
    /// host is not an address of this machine; the port is always the one that the cluster names for this task
    #[arg(long)]
    pub bind: Option<IpAddr>,

    /// Number of CPU devices to offer (CPU:0, CPU:1, … share the same cores); 1 by default
    #[arg(long)]
    pub cpu_devices: Option<u32>,

    #[command(flatten)]
    pub gpus: GpuFlags,

    /// Threads that run kernels; the number of cores by default
    #[arg(long)]
    pub threads: Option<usize>,

    /// Seconds that a new session waits for a task that it needs and that cannot be reached
    #[arg(long, default_value_t = 60.0)]
    pub connect_deadline: f64,

    /// A serialized tf.ConfigProto in base64, like the config of tf.train.Server: it sets device counts, threads and
    /// GPUs unless a flag does, and the defaults of session options
    #[arg(long, value_name = "BASE64")]
    pub config: Option<ServerOptions>,

    /// How tensors travel to other tasks that run Anabranch: auto (the fastest transport that both ends
    /// support), shm (shared memory on one machine), tcp, or grpc
    #[arg(long, default_value_t = Transport::default())]
    pub transport: Transport,

    /// The task that leads the groups of collectives, such as /job:worker/task:0, unless a session names another; task 0
    /// of job chief, else of job worker, else of the first job by default
    #[arg(long, value_name = "TASK")]
    pub collective_leader: Option<String>,

    /// Seconds within which a collective must end if its op sets no timeout
    #[arg(long, default_value_t = worker::COLLECTIVE_TIMEOUT.as_secs_f64())]
    pub collective_timeout: f64,

    /// Seconds after which a collective that waits is logged, with the missing members and their actions; it is
    /// logged again whenever its time has doubled
    #[arg(long, default_value_t = worker::STALL_WARN.as_secs_f64())]
    pub stall_warn: f64,

    /// Maximum microseconds that a core is kept from halting after a request, as long as the next request often comes
    /// within that time; 0 disables spinning
    #[arg(long, default_value_t = 1000)]
    pub spin: u64,

    /// Seconds that steps in progress have to finish when the process is stopped
    #[arg(long, default_value_t = 5.0)]
    pub stop_grace: f64,

    /// Also stop when standard input ends: for a server that must not outlive the process that started it
    #[arg(long)]
    pub stop_with_stdin: bool,
}

/// Number of threads per core that place, partition and compile graphs. Several threads keep a large graph from
/// delaying small ones; a larger number would only use memory, because the threads compute without waiting.
const PLANNING_THREADS_PER_CORE: usize = 2;
const MAX_PLANNING_THREADS: usize = 32;
/// Time after which an idle planning thread ends and frees its memory.
const PLANNING_THREAD_KEEP_ALIVE: Duration = Duration::from_secs(2);

/// Number of cores per thread that serves RPCs and links between tasks, up to `MAX_RPC_THREADS` threads. On two cores,
/// a second thread would be woken along with the first, mostly without work, which makes a step between tasks a tenth
/// slower.
const CORES_PER_RPC_THREAD: usize = 2;
const MAX_RPC_THREADS: usize = 4;

/// Interval at which freed memory is returned to the operating system.
const GIVE_BACK_INTERVAL: Duration = Duration::from_secs(3);

/// The reason why a server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{0}")]
    Flags(String),
    #[error("{task} cannot listen on {address}: {source}")]
    Listen { task: TaskName, address: String, source: io::Error },
    #[error("the server's threads cannot be started: {0}")]
    Runtime(io::Error),
    #[error("{0}")]
    Start(proto::Status),
    #[error(
        "the other process of {0} serves the task with its complete state: restart this process as its standby"
    )]
    Yielded(TaskName),
}

/// Serves a task until SIGTERM or SIGINT.
pub fn run(flags: &ServeFlags, default_job: Option<&str>) -> Result<(), ServeError> {
    let TaskIdentity { cluster, task, address, replica } =
        flags.place.resolve(default_job).map_err(ServeError::Flags)?;
    let seconds = |s: f64, flag: &str| {
        Duration::try_from_secs_f64(s).map_err(|_| ServeError::Flags(format!("{flag} is {s}, no duration")))
    };
    let grace = seconds(flags.stop_grace, "--stop-grace")?;
    let mut options = flags.config.clone().unwrap_or_default();
    if let Some(leader) = &flags.collective_leader {
        let experimental = options.session_config.experimental.get_or_insert_default();
        experimental.collective_group_leader.clone_from(leader);
    }
    if options.has_ignored_filters {
        tracing::warn!("device filters of a server's config have no effect: give them to sessions");
    }
    let default = ServerConfig::default();
    let config = ServerConfig {
        cluster,
        task,
        cpu_devices: flags.cpu_devices.or(options.cpu_devices).unwrap_or(default.cpu_devices),
        gpus: options.gpus(flags.gpus.options()),
        threads: flags.threads.or(options.threads).unwrap_or(default.threads),
        transport: flags.transport,
        replica_address: replica.as_ref().map(|_| address.clone()),
        connect_deadline: seconds(flags.connect_deadline, "--connect-deadline")?,
        collective_timeout: seconds(flags.collective_timeout, "--collective-timeout")?,
        stall_warn: seconds(flags.stall_warn, "--stall-warn")?,
        session_config: options.session_config,
        trim_memory: allocator::trim_memory,
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if flags.spin > 0 {
        let spin = AdaptiveSpin::start(Duration::from_micros(flags.spin)).map_err(ServeError::Runtime)?;
        let spin = Arc::new(spin);
        let parking = spin.clone();
        runtime.on_thread_park(move || parking.on_park()).on_thread_unpark(move || spin.on_unpark());
    }
    let runtime = runtime
        .worker_threads((cores / CORES_PER_RPC_THREAD).clamp(1, MAX_RPC_THREADS))
        .max_blocking_threads((cores * PLANNING_THREADS_PER_CORE).min(MAX_PLANNING_THREADS))
        .thread_keep_alive(PLANNING_THREAD_KEEP_ALIVE)
        .thread_name("anabranch-rpc")
        .enable_all()
        .build()
        .map_err(ServeError::Runtime)?;
    let at = ListenAddress { task: config.task.clone(), address, bind: flags.bind };
    let served = runtime.block_on(serve(config, flags, &at, replica, grace));
    // Threads that still plan graphs are not waited for, because no session needs their results.
    runtime.shutdown_background();
    served
}

async fn serve(
    config: ServerConfig,
    flags: &ServeFlags,
    at: &ListenAddress,
    replica: Option<Replica>,
    grace: Duration,
) -> Result<(), ServeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Runtime)?;
    let task = config.task.clone();
    // A process that cannot listen must fail before it acquires other resources.
    let listener = if replica.is_none() { Some(at.listen()?) } else { None };
    gpu_flags::log_available(&config.gpus.visible);
    let server = Server::in_runtime(config).map_err(ServeError::Start)?;
    let input_ended = Arc::new(Notify::new());
    if flags.stop_with_stdin {
        watch_stdin(input_ended.clone()).map_err(ServeError::Runtime)?;
    }
    let has_yielded = AtomicBool::new(false);
    let mut stop_requested = std::pin::pin!(async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = input_ended.notified() => {}
            () = server.wait_until_superseded() => has_yielded.store(true, Ordering::Relaxed),
        }
    });
    // The `Standby` is kept while this process serves, because it holds the port open by which the other process of the
    // task detects that this process is alive.
    let (listener, _standby) = match (listener, &replica) {
        (Some(listener), _) => (listener, None),
        (None, Some(replica)) => tokio::select! {
            served = stand_by_until_serving(&server, at, replica) => {
                let (listener, standby) = served?;
                (listener, Some(standby))
            }
            () = &mut stop_requested => {
                tracing::info!("the standby of {task} stops");
                return Ok(());
            }
            never = give_back_memory() => match never {},
        },
        (None, None) => (at.listen()?, None),
    };
    if let Ok(address) = listener.local_addr() {
        tracing::info!("{task} listens on {address}");
    }
    let stop = async {
        stop_requested.await;
        tracing::info!("{task} stops: steps in flight have {grace:?} to finish");
    };
    tokio::select! {
        () = server.serve(listener, stop, grace) => {}
        never = give_back_memory() => match never {},
    }
    tracing::info!("{task} has stopped");
    if has_yielded.load(Ordering::Relaxed) { Err(ServeError::Yielded(task)) } else { Ok(()) }
}

/// Returns freed memory to the operating system every [`GIVE_BACK_INTERVAL`], without end.
async fn give_back_memory() -> Infallible {
    loop {
        tokio::time::sleep(GIVE_BACK_INTERVAL).await;
        allocator::trim_memory();
    }
}

/// Notifies `ended` when standard input ends. The read runs on a separate thread because it cannot be
/// cancelled.
fn watch_stdin(ended: Arc<Notify>) -> std::io::Result<()> {
    let watch = move || {
        // An input that cannot be read counts as ended.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        ended.notify_one();
    };
    std::thread::Builder::new().name("anabranch-stdin".to_owned()).spawn(watch)?;
    Ok(())
}

/// The time for which the first process of a task with a standby waits for the other process to serve, before it serves
/// itself. The second process waits longer, so that the first process serves if both start together.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const SECOND_WAIT: Duration = Duration::from_secs(3);
/// Delay between two attempts to listen.
const LISTEN_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Replicates the state of the other process of the task until this process must serve.
async fn stand_by_until_serving(
    server: &Server,
    at: &ListenAddress,
    replica: &Replica,
) -> Result<(TcpListener, Standby), ServeError> {
    let host = at.address.rsplit_once(':').map_or("", |(host, _)| host);
    let is_v6 = at.address.to_socket_addrs().is_ok_and(|mut all| all.next().is_some_and(|a| a.is_ipv6()));
    let any: IpAddr = if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let standby = server.standby(&replica.other, host, at.bind.unwrap_or(any)).await;
    let standby = standby.map_err(ServeError::Start)?;
    // The port is bound early so that no other program takes it; connections to it are refused meanwhile.
    let mut bound = Some(at.bind_port()?);
    loop {
        let wait = if replica.is_first { FIRST_WAIT } else { SECOND_WAIT };
        standby.wait_until_unserved(wait).await;
        let listener = match bound
            .take()
            .map_or_else(|| at.bind_port(), Ok)
            .and_then(|port| at.listen_on(port))
        {
            Ok(listener) => listener,
            // This process must not give up, because only this process has the task's state.
            Err(error) if standby.has_state() => {
                tracing::error!("{error}; retrying, because only this process has the state of {}", at.task);
                tokio::time::sleep(LISTEN_RETRY_DELAY).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        // The other process may have started at the same time, so each of the two listens before it checks whether the
        // other serves.
        if standby.try_begin_serving(replica.is_first).await {
            match standby.has_state() {
                true => tracing::warn!("{} is served here from now on, with its complete state", at.task),
                false => tracing::info!("{} is served here", at.task),
            }
            return Ok((listener, standby));
        }
    }
}

/// The address on which a process listens when it serves its task.
struct ListenAddress {
    task: TaskName,
    address: String,
    bind: Option<IpAddr>,
}

impl ListenAddress {
    /// Listens on the process's port.
    fn listen(&self) -> Result<TcpListener, ServeError> {
        self.listen_on(self.bind_port()?)
    }

    fn listen_on(&self, port: TcpSocket) -> Result<TcpListener, ServeError> {
        port.listen(BACKLOG).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> ServeError {
        ServeError::Listen { task: self.task.clone(), address: self.address.clone(), source }
    }

    /// Binds the process's port, which refuses connections until the process listens on it.
    fn bind_port(&self) -> Result<TcpSocket, ServeError> {
        let ListenAddress { task, address, bind } = self;
        let failed = |source| self.failed(source);
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let port = port
            .ok_or_else(|| ServeError::Flags(format!("the address of {task}, '{address}', has no port")))?;
        if let Some(ip) = *bind {
            return bind_socket(SocketAddr::new(ip, port)).map_err(failed);
        }
        let named: Vec<SocketAddr> = address.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
        for candidate in named {
            match bind_socket(candidate) {
                Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => {}
                result => return result.map_err(failed),
            }
        }
        tracing::warn!("'{address}' is no address of this machine: {task} listens on all interfaces");
        bind_socket(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)).map_err(failed)
    }
}

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;

fn bind_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // With `SO_REUSEADDR`, old connections of a process that has ended do not block the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Logs to standard error. `RUST_LOG` selects the messages, by default from level `info`.
pub fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
}

/// Returns the exit code of the process, and logs the error if there is one.
pub fn exit_code(result: Result<(), ServeError>) -> std::process::ExitCode {
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}
