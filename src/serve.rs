//! Runs a task of a cluster as a process: listens, answers until told to stop, and ends its steps in order.

use crate::awake::Awake;
use crate::gpu_flags::{self, GpuFlags};
use crate::server_options::ServerOptions;
use crate::task_flags::{Place, Replica};
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

    /// The address to listen on. Without it, the host that the cluster names for this task, or all interfaces
    /// where that is no address of this machine; the port is always the cluster's
    #[arg(long)]
    pub bind: Option<IpAddr>,

    /// How many CPU devices to offer (CPU:0, CPU:1, … over the same cores); one without it
    #[arg(long)]
    pub cpu_devices: Option<u32>,

    #[command(flatten)]
    pub gpus: GpuFlags,

    /// Threads that run kernels; as many as there are cores without it
    #[arg(long)]
    pub threads: Option<usize>,

    /// Seconds that a new session waits for a task that it needs and that cannot be reached
    #[arg(long, default_value_t = 60.0)]
    pub connect_deadline: f64,

    /// A serialized tf.ConfigProto in base64, as tf.train.Server takes one: device counts, threads and GPUs where flags
    /// leave them open, and the options of sessions that say nothing else
    #[arg(long, value_name = "BASE64")]
    pub config: Option<ServerOptions>,

    /// How tensors travel to other tasks that run Anabranch: auto (the best way that both ends have), shm (shared memory
    /// on one machine), tcp, or grpc
    #[arg(long, default_value_t = Transport::default())]
    pub transport: Transport,

    /// Microseconds that a core is kept from halting after a request at most, while requests come as often; 0: never
    #[arg(long, default_value_t = 1000)]
    pub spin: u64,

    /// Seconds that steps in flight have to finish when the process is told to stop
    #[arg(long, default_value_t = 5.0)]
    pub stop_grace: f64,

    /// Stop when standard input ends too: for a server that must not outlive the process that started it
    #[arg(long)]
    pub stop_with_stdin: bool,
}

/// Threads that place, split and compile graphs, at most: so many a core, that a large graph does not hold up small
/// ones, and no more, for they compute and never wait, and each that is started holds memory of its own.
const PLANNING_THREADS_A_CORE: usize = 2;
const MOST_PLANNING_THREADS: usize = 32;
/// How long one without work stays, with the memory that it has set aside.
const PLANNING_THREADS_STAY: Duration = Duration::from_secs(2);

/// There is a thread for RPCs and links for so many cores, up to a few. On two cores a second one is woken along with
/// the first, for nothing most often, which costs a step between tasks a tenth of its time.
const CORES_AN_RPC_THREAD: usize = 2;
const MOST_RPC_THREADS: usize = 4;

/// How often the allocator is made to give back what has been freed.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(3);

/// What keeps a server from running.
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
    #[error("the other process of {0} serves it, with all that there was: start this one again, to stand by")]
    Yielded(TaskName),
}

/// Serves until SIGTERM or SIGINT.
pub fn run(flags: &ServeFlags, default_job: Option<&str>) -> Result<(), ServeError> {
    let Place { cluster, task, address, replica } =
        flags.place.resolve(default_job).map_err(ServeError::Flags)?;
    let seconds = |s: f64, flag: &str| {
        Duration::try_from_secs_f64(s).map_err(|_| ServeError::Flags(format!("{flag} is {s}, no duration")))
    };
    let grace = seconds(flags.stop_grace, "--stop-grace")?;
    let options = flags.config.clone().unwrap_or_default();
    if options.ignores_filters {
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
        replica_at: replica.as_ref().map(|_| address.clone()),
        connect_deadline: seconds(flags.connect_deadline, "--connect-deadline")?,
        session_config: options.sessions,
        give_back: allocator::give_back,
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if flags.spin > 0 {
        let awake = Awake::for_up_to(Duration::from_micros(flags.spin)).map_err(ServeError::Runtime)?;
        let awake = Arc::new(awake);
        let resting = awake.clone();
        runtime.on_thread_park(move || resting.rests()).on_thread_unpark(move || awake.wakes());
    }
    let runtime = runtime
        .worker_threads((cores / CORES_AN_RPC_THREAD).clamp(1, MOST_RPC_THREADS))
        .max_blocking_threads((cores * PLANNING_THREADS_A_CORE).min(MOST_PLANNING_THREADS))
        .thread_keep_alive(PLANNING_THREADS_STAY)
        .thread_name("anabranch-rpc")
        .enable_all()
        .build()
        .map_err(ServeError::Runtime)?;
    let at = Listening { task: config.task.clone(), address, bind: flags.bind };
    let served = runtime.block_on(serve(config, flags, &at, replica, grace));
    // Graphs in the midst of being planned are of no use any more.
    runtime.shutdown_background();
    served
}

async fn serve(
    config: ServerConfig,
    flags: &ServeFlags,
    at: &Listening,
    replica: Option<Replica>,
    grace: Duration,
) -> Result<(), ServeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Runtime)?;
    let task = config.task.clone();
    // Who cannot listen ends before it takes anything else.
    let listener = if replica.is_none() { Some(at.listen()?) } else { None };
    gpu_flags::tell(&config.gpus.visible);
    let server = Server::in_runtime(config).map_err(ServeError::Start)?;
    let input_ended = Arc::new(Notify::new());
    if flags.stop_with_stdin {
        watch_stdin(input_ended.clone()).map_err(ServeError::Runtime)?;
    }
    let has_yielded = AtomicBool::new(false);
    let mut told_to_stop = std::pin::pin!(async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = input_ended.notified() => {}
            () = server.yields() => has_yielded.store(true, Ordering::Relaxed),
        }
    });
    // The standby that this process was still says that it lives.
    let (listener, _standby) = match (listener, &replica) {
        (Some(listener), _) => (listener, None),
        (None, Some(replica)) => tokio::select! {
            served = until_it_serves(&server, at, replica) => {
                let (listener, standby) = served?;
                (listener, Some(standby))
            }
            () = &mut told_to_stop => {
                tracing::info!("{task} stops, which this process did not serve");
                return Ok(());
            }
            never = give_back() => match never {},
        },
        (None, None) => (at.listen()?, None),
    };
    if let Ok(address) = listener.local_addr() {
        tracing::info!("{task} listens on {address}");
    }
    let stop = async {
        told_to_stop.await;
        tracing::info!("{task} stops: steps in flight have {grace:?} to finish");
    };
    tokio::select! {
        () = server.serve(listener, stop, grace) => {}
        never = give_back() => match never {},
    }
    tracing::info!("{task} has stopped");
    if has_yielded.load(Ordering::Relaxed) { Err(ServeError::Yielded(task)) } else { Ok(()) }
}

async fn give_back() -> Infallible {
    loop {
        tokio::time::sleep(GIVE_BACK_EVERY).await;
        allocator::give_back();
    }
}

/// Tells when standard input has ended. On a thread of its own, for a read of it cannot be given up.
fn watch_stdin(ended: Arc<Notify>) -> std::io::Result<()> {
    let watch = move || {
        // An input that cannot be read has ended as well.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        ended.notify_one();
    };
    std::thread::Builder::new().name("anabranch-stdin".to_owned()).spawn(watch)?;
    Ok(())
}

/// How long a process waits for the other of its task to serve, when both start: the first of the two is sooner.
const FIRST_WAITS: Duration = Duration::from_secs(1);
const SECOND_WAITS: Duration = Duration::from_secs(3);
/// Between two attempts to listen.
const PORT_PAUSE: Duration = Duration::from_millis(500);

/// Follows the other process of the task until this one is to serve.
async fn until_it_serves(
    server: &Server,
    at: &Listening,
    replica: &Replica,
) -> Result<(TcpListener, Standby), ServeError> {
    let host = at.address.rsplit_once(':').map_or("", |(host, _)| host);
    let is_v6 = at.address.to_socket_addrs().is_ok_and(|mut all| all.next().is_some_and(|a| a.is_ipv6()));
    let any: IpAddr = if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let standby = server.standby(&replica.other, host, at.bind.unwrap_or(any)).await;
    let standby = standby.map_err(ServeError::Start)?;
    // Nobody else gets the port until it is needed; who connects is refused meanwhile.
    let mut held = Some(at.hold()?);
    loop {
        let patience = if replica.is_first { FIRST_WAITS } else { SECOND_WAITS };
        standby.until_nobody_serves(patience).await;
        let listener = match held.take().map_or_else(|| at.hold(), Ok).and_then(|port| at.listen_on(port)) {
            Ok(listener) => listener,
            // What it holds nobody else does.
            Err(error) if standby.holds_state() => {
                tracing::error!("{error}; tried again, for this process alone has what {} had", at.task);
                tokio::time::sleep(PORT_PAUSE).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        // The other may have come just now: each of the two listens before it looks.
        if standby.may_serve(replica.is_first).await {
            match standby.holds_state() {
                true => tracing::warn!("{} is served here from now on, with all that it had", at.task),
                false => tracing::info!("{} is served here", at.task),
            }
            return Ok((listener, standby));
        }
    }
}

/// Where a process listens when it serves.
struct Listening {
    task: TaskName,
    address: String,
    bind: Option<IpAddr>,
}

impl Listening {
    /// Listens on the process's own port.
    fn listen(&self) -> Result<TcpListener, ServeError> {
        self.listen_on(self.hold()?)
    }

    fn listen_on(&self, port: TcpSocket) -> Result<TcpListener, ServeError> {
        port.listen(BACKLOG).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> ServeError {
        ServeError::Listen { task: self.task.clone(), address: self.address.clone(), source }
    }

    /// Has the process's own port, which refuses connections until it is listened on.
    fn hold(&self) -> Result<TcpSocket, ServeError> {
        let Listening { task, address, bind } = self;
        let failed = |source| self.failed(source);
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let port = port
            .ok_or_else(|| ServeError::Flags(format!("the address of {task}, '{address}', has no port")))?;
        if let Some(ip) = *bind {
            return held(SocketAddr::new(ip, port)).map_err(failed);
        }
        let named: Vec<SocketAddr> = address.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
        for candidate in named {
            match held(candidate) {
                Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => {}
                result => return result.map_err(failed),
            }
        }
        tracing::warn!("'{address}' is no address of this machine: {task} listens on all interfaces");
        held(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)).map_err(failed)
    }
}

/// Connections that may wait to be taken.
const BACKLOG: u32 = 1024;

fn held(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Connections of a process that has ended do not keep it.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Logs to standard error; `RUST_LOG` chooses what, from `info` up without it.
pub fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
}

/// Logs why the process ends, if it ends badly.
pub fn exit_code(result: Result<(), ServeError>) -> std::process::ExitCode {
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}
