//! Where links are taken in: a Unix socket that only this machine sees, and a TCP port. Whoever does not begin with the
//! token that he was given is turned away.

use super::Transport;
use super::connection::Connection;
use super::meeting::{HELLO, Hello, Role, WELCOME};
use super::roads::{GREETING, Roads, greeting_thread, read_within};
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

/// Callers who have not said hello yet; more are turned away.
const MOST_STRANGERS: usize = 64;
/// Lanes whose main connection has not come yet.
const MOST_LANES: usize = 256;
/// How long they wait for it: each is greeted before the next is made.
const LANE_PATIENCE: Duration = Duration::from_secs(30);
/// Lanes of one link.
const MOST_OF_LINK: usize = 64;
/// After a failure to accept: descriptors may be free again then.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Ports {
    pub(super) unix: Option<String>,
    pub(super) tcp: Option<SocketAddr>,
    listening: Vec<OwnedFd>,
    /// Those that accept.
    threads: Vec<Thread>,
    closed: Arc<AtomicBool>,
}

/// What the threads that take callers in have in common.
struct Door {
    roads: Weak<Roads>,
    strangers: AtomicUsize,
    lanes: Mutex<FxHashMap<u64, Lanes>>,
    closed: Arc<AtomicBool>,
}

/// Of one link, and when the first of them came.
type Lanes = (Instant, Vec<TcpStream>);

impl Ports {
    /// Listens, on threads of its own. A machine without one kind of socket has the other.
    ///
    /// # Errors
    /// That there is no kind that the user allows.
    pub(super) fn open(roads: &Arc<Roads>, transport: Transport, bind: &[IpAddr]) -> io::Result<Ports> {
        let closed = Arc::new(AtomicBool::new(false));
        let door = Arc::new(Door {
            roads: Arc::downgrade(roads),
            strangers: AtomicUsize::new(0),
            lanes: Mutex::default(),
            closed: closed.clone(),
        });
        let mut ports = Ports { unix: None, tcp: None, listening: Vec::new(), threads: Vec::new(), closed };
        let mut failed = None;
        if transport.shares_memory() {
            match ports.open_unix(&door) {
                Ok(name) => ports.unix = Some(name),
                Err(error) => failed = Some(error),
            }
        }
        if matches!(transport, Transport::Auto | Transport::Tcp) {
            match ports.open_tcp(&door, bind) {
                Ok(address) => ports.tcp = Some(address),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if ports.unix.is_none() && ports.tcp.is_none() => Err(error),
            _ => Ok(ports),
        }
    }

    fn open_unix(&mut self, door: &Arc<Door>) -> io::Result<String> {
        let name = format!("anabranch-{}-{:016x}", std::process::id(), rand::random::<u64>());
        let listener = UnixListener::bind_addr(&std::os::unix::net::SocketAddr::from_abstract_name(&name)?)?;
        self.listening.push(listener.as_fd().try_clone_to_owned()?);
        self.threads
            .push(door.attend(move || listener.accept().map(|(stream, _)| Ok(Socket::unix(stream))))?);
        Ok(name)
    }

    fn open_tcp(&mut self, door: &Arc<Door>, bind: &[IpAddr]) -> io::Result<SocketAddr> {
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
            // Behind an address that is not the machine's own, as the cluster's port is.
            address.set_ip(named);
        }
        self.listening.push(listener.as_fd().try_clone_to_owned()?);
        self.threads.push(door.attend(move || listener.accept().map(|(stream, _)| Socket::tcp(stream)))?);
        Ok(address)
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        for listener in &self.listening {
            // Wakes the thread that accepts.
            let _ = rustix::net::shutdown(listener, Shutdown::Both);
        }
        // And the one that pauses.
        self.threads.iter().for_each(Thread::unpark);
    }
}

impl Door {
    fn attend(
        self: &Arc<Self>,
        accept: impl Fn() -> io::Result<io::Result<Socket>> + Send + 'static,
    ) -> io::Result<Thread> {
        let door = self.clone();
        let thread = greeting_thread().name("anabranch-door".into());
        let accepting = thread.spawn(move || {
            while !door.closed.load(Ordering::Acquire) {
                match accept() {
                    Ok(Ok(socket)) => door.take_in(socket),
                    Ok(Err(error)) => tracing::debug!("a caller for tensors has gone: {error}"),
                    Err(_) if door.closed.load(Ordering::Acquire) => {}
                    Err(error) => {
                        tracing::warn!("links for tensors cannot be accepted for now: {error}");
                        std::thread::park_timeout(PAUSE);
                    }
                }
            }
        })?;
        Ok(accepting.thread().clone())
    }

    /// Hears a caller on a thread of his own.
    fn take_in(self: &Arc<Self>, socket: Socket) {
        let door = self.clone();
        if door.strangers.fetch_add(1, Ordering::Relaxed) >= MOST_STRANGERS {
            door.strangers.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let spawned = greeting_thread().spawn(move || {
            let greeted = door.greet(&socket);
            door.strangers.fetch_sub(1, Ordering::Relaxed);
            match greeted {
                Ok((link, role)) => door.let_in(socket, link, role),
                Err(error) => tracing::debug!("a caller for tensors was turned away: {error}"),
            }
        });
        if spawned.is_err() {
            self.strangers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn greet(&self, socket: &Socket) -> io::Result<(u64, Role)> {
        let roads = self.roads.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        let mut first = [0; HELLO];
        read_within(GREETING, socket, &mut first)?;
        let (link, rest) = Hello::check(&first, roads.epoch, roads.token)?;
        let mut bytes = vec![0; rest];
        read_within(GREETING, socket, &mut bytes)?;
        Ok((link, Hello::role(&bytes)?))
    }

    fn let_in(&self, socket: Socket, link: u64, role: Role) {
        match role {
            Role::Lane => {
                let mut lanes = self.lanes.lock();
                lanes.retain(|_, (since, _)| since.elapsed() < LANE_PATIENCE);
                if lanes.values().map(|(_, lanes)| lanes.len()).sum::<usize>() >= MOST_LANES {
                    return;
                }
                let (_, of_link) = lanes.entry(link).or_insert_with(|| (Instant::now(), Vec::new()));
                if of_link.len() < MOST_OF_LINK
                    && welcome(&socket).is_ok()
                    && let Socket::Tcp(lane) = socket
                {
                    of_link.push(lane);
                }
            }
            Role::Main { lanes, caller } => {
                let stand = self.lanes.lock().remove(&link).map(|(_, lanes)| lanes).unwrap_or_default();
                let Some(roads) = self.roads.upgrade() else { return };
                if stand.len() == usize::from(lanes) && welcome(&socket).is_ok() {
                    roads.admit(Connection::new(socket, stand), link, caller);
                }
            }
        }
    }
}

fn welcome(socket: &Socket) -> io::Result<()> {
    match socket.send(&[IoSlice::new(&WELCOME)], None, true)? {
        written if written == WELCOME.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}
