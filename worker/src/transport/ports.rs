//! The sockets on which links are accepted: a Unix socket for the same machine, and a TCP port. Connections
//! that do not begin with the token of the invitation are closed.

use super::Transport;
use super::connection::Connection;
use super::handshake::{HELLO_LEN, Hello, Role, WELCOME};
use super::link_table::{HANDSHAKE_TIMEOUT, LinkTable, handshake_thread, read_within};
use super::socket::Socket;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::net::Shutdown;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Largest number of connections whose [`Hello`] has not been read completely; further connections are closed.
const MAX_PENDING: usize = 64;
/// Largest number of secondary connections of all links whose main connection has not arrived.
const MAX_PENDING_SECONDARIES: usize = 256;
/// Time for which a secondary connection waits for its link's main connection, which is opened last.
const SECONDARY_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest number of secondary connections of one link.
const MAX_SECONDARIES_OF_LINK: usize = 64;
/// Pause after a connection could not be accepted, for instance because the process has no free file
/// descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The listening sockets of a worker, and the threads that accept connections on them.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) unix: Option<String>,
    pub(super) tcp: Option<SocketAddr>,
    listening: Vec<OwnedFd>,
    /// The threads that accept connections, one for each listening socket.
    threads: Vec<Thread>,
    closed: Arc<AtomicBool>,
}

/// The state that the accepting threads share: the connections whose links are not complete.
struct Acceptor {
    link_table: Weak<LinkTable>,
    pending: AtomicUsize,
    secondaries: Mutex<FxHashMap<u64, PendingSecondaries>>,
    closed: Arc<AtomicBool>,
}

/// The secondary connections of a link whose main connection has not arrived, and the arrival time of the
/// first.
type PendingSecondaries = (Instant, Vec<TcpStream>);

impl Ports {
    /// Opens the sockets that `transport` allows, and accepts connections on dedicated threads. If only one of the Unix
    /// and TCP sockets can be opened, it is used alone.
    ///
    /// # Errors
    /// If none of the sockets that `transport` allows can be opened.
    pub(super) fn open(
        link_table: &Arc<LinkTable>,
        transport: Transport,
        bind: &[IpAddr],
    ) -> io::Result<Ports> {
        let closed = Arc::new(AtomicBool::new(false));
        let acceptor = Arc::new(Acceptor {
            link_table: Arc::downgrade(link_table),
            pending: AtomicUsize::new(0),
            secondaries: Mutex::default(),
            closed: closed.clone(),
        });
        let mut ports = Ports { unix: None, tcp: None, listening: Vec::new(), threads: Vec::new(), closed };
        let mut failed = None;
        if transport.shares_memory() {
            match ports.open_unix(&acceptor) {
                Ok(name) => ports.unix = Some(name),
                Err(error) => failed = Some(error),
            }
        }
        if matches!(transport, Transport::Auto | Transport::Tcp) {
            match ports.open_tcp(&acceptor, bind) {
                Ok(address) => ports.tcp = Some(address),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if ports.unix.is_none() && ports.tcp.is_none() => Err(error),
            _ => Ok(ports),
        }
    }

    fn open_unix(&mut self, acceptor: &Arc<Acceptor>) -> io::Result<String> {
        let name = format!("anabranch-{}-{:016x}", std::process::id(), rand::random::<u64>());
        let listener = UnixListener::bind_addr(&std::os::unix::net::SocketAddr::from_abstract_name(&name)?)?;
        self.listening.push(listener.as_fd().try_clone_to_owned()?);
        self.threads
            .push(acceptor.spawn(move || listener.accept().map(|(stream, _)| Ok(Socket::unix(stream))))?);
        Ok(name)
    }

    fn open_tcp(&mut self, acceptor: &Arc<Acceptor>, bind: &[IpAddr]) -> io::Result<SocketAddr> {
        let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        let mut bound = Err(io::ErrorKind::AddrNotAvailable.into());
        for &ip in bind.iter().chain([&any]) {
            bound = TcpListener::bind((ip, 0));
            if bound.is_ok() {
                break;
            }
        }
        let listener = bound?;
        let mut address = listener.local_addr()?;
        if let (true, Some(&named)) = (address.ip().is_unspecified(), bind.first()) {
            // No interface of this machine has the address that the cluster spec gives it, so other machines
            // reach this port by the address of the cluster spec too.
            address.set_ip(named);
        }
        self.listening.push(listener.as_fd().try_clone_to_owned()?);
        self.threads.push(acceptor.spawn(move || listener.accept().map(|(stream, _)| Socket::tcp(stream)))?);
        Ok(address)
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        for listener in &self.listening {
            // Wakes the thread that waits for a connection on this socket.
            let _ = rustix::net::shutdown(listener, Shutdown::Both);
        }
        // Wakes the threads that pause after a failure to accept.
        self.threads.iter().for_each(Thread::unpark);
    }
}

impl Acceptor {
    /// Starts a thread that calls `accept` for new connections until the ports are closed.
    fn spawn(
        self: &Arc<Self>,
        accept: impl Fn() -> io::Result<io::Result<Socket>> + Send + 'static,
    ) -> io::Result<Thread> {
        let acceptor = self.clone();
        let thread = handshake_thread().name("anabranch-accept".into());
        let accepting = thread.spawn(move || {
            while !acceptor.closed.load(Ordering::Acquire) {
                match accept() {
                    Ok(Ok(socket)) => acceptor.handshake_on_thread(socket),
                    Ok(Err(error)) => tracing::debug!("a connection for tensors has ended: {error}"),
                    Err(_) if acceptor.closed.load(Ordering::Acquire) => {}
                    Err(error) => {
                        tracing::warn!("links for tensors cannot be accepted for now: {error}");
                        std::thread::park_timeout(ACCEPT_RETRY);
                    }
                }
            }
        })?;
        Ok(accepting.thread().clone())
    }

    /// Performs the handshake with a new connection on a separate thread.
    fn handshake_on_thread(self: &Arc<Self>, socket: Socket) {
        let acceptor = self.clone();
        if acceptor.pending.fetch_add(1, Ordering::Relaxed) >= MAX_PENDING {
            acceptor.pending.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let spawned = handshake_thread().spawn(move || {
            let hello = acceptor.read_hello(&socket);
            acceptor.pending.fetch_sub(1, Ordering::Relaxed);
            match hello {
                Ok((link, role)) => acceptor.accept_connection(socket, link, role),
                Err(error) => tracing::debug!("a connection for tensors was refused: {error}"),
            }
        });
        if spawned.is_err() {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Reads and checks the [`Hello`] of a new connection. Returns the link's number and the connection's
    /// role.
    fn read_hello(&self, socket: &Socket) -> io::Result<(u64, Role)> {
        let link_table = self.link_table.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        let mut first = [0; HELLO_LEN];
        read_within(HANDSHAKE_TIMEOUT, socket, &mut first)?;
        let (link, rest) = Hello::check(&first, link_table.process, link_table.token)?;
        let mut bytes = vec![0; rest];
        read_within(HANDSHAKE_TIMEOUT, socket, &mut bytes)?;
        Ok((link, Hello::role(&bytes)?))
    }

    /// Accepts a connection of a link: stores a secondary connection, or completes the link with its main
    /// connection.
    fn accept_connection(&self, socket: Socket, link: u64, role: Role) {
        match role {
            Role::Secondary => {
                let mut secondaries = self.secondaries.lock();
                secondaries.retain(|_, (since, _)| since.elapsed() < SECONDARY_TIMEOUT);
                if secondaries.values().map(|(_, secondaries)| secondaries.len()).sum::<usize>()
                    >= MAX_PENDING_SECONDARIES
                {
                    return;
                }
                let (_, of_link) = secondaries.entry(link).or_insert_with(|| (Instant::now(), Vec::new()));
                if of_link.len() < MAX_SECONDARIES_OF_LINK
                    && send_welcome(&socket).is_ok()
                    && let Socket::Tcp(secondary) = socket
                {
                    of_link.push(secondary);
                }
            }
            Role::Main { secondaries, caller } => {
                let opened = self
                    .secondaries
                    .lock()
                    .remove(&link)
                    .map(|(_, secondaries)| secondaries)
                    .unwrap_or_default();
                let Some(link_table) = self.link_table.upgrade() else { return };
                if opened.len() == usize::from(secondaries) && send_welcome(&socket).is_ok() {
                    link_table.add_inbound(Connection::new(socket, opened), link, caller);
                }
            }
        }
    }
}

fn send_welcome(socket: &Socket) -> io::Result<()> {
    match socket.send(&[IoSlice::new(&WELCOME)], None, true)? {
        written if written == WELCOME.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}
