//! The table of a worker's links: opens and accepts links, and cleans up when they end.

use super::Transport;
use super::connection::Connection;
use super::fabric::{Fabric, Lender, MAX_TEXT};
use super::handoff::HandoffTable;
use super::handshake::{
    Caller, Endpoint, FABRIC_KEY, Hello, INVITATION_KEY, INVITATION_REQUEST_KEY, Invitation, Role, WELCOME,
};
use super::inbound::Inbound;
use super::outbound::{Locality, Outbound};
use super::ports::Ports;
use super::route::{FOREIGN_RETRY_AFTER, RETRY_AFTER, Route};
use super::socket::Socket;
use crate::worker::Worker;
use graph::TaskName;
use parking_lot::{Mutex, RwLock};
use proto::channel::{Peer, RetryPolicy};
use proto::pb::GetStatusRequest;
use proto::service::WorkerServiceClient;
use proto::{Cluster, Status};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tonic::metadata::MetadataValue;

/// Timeout of the request for an invitation.
const INVITATION_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for opening a connection and completing its handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
const HANDSHAKE_STACK: usize = 512 << 10;

/// The links of one worker, by address. All sessions share them, even if sessions call the same task by
/// different names.
pub(crate) struct LinkTable {
    transport: Transport,
    /// Number of connections of a TCP link besides the main one.
    secondaries: usize,
    runtime: Handle,
    caller: Caller,
    /// The addresses to listen on for TCP; the first available one is used.
    bind: Vec<IpAddr>,
    /// The cluster spec that the process was started with.
    cluster: Cluster,
    pub(super) process: u64,
    pub(super) token: u128,
    /// The fabric by which links over TCP exchange large tensors.
    fabric: OnceLock<Arc<dyn Fabric>>,
    worker: OnceLock<Weak<Worker>>,
    by_address: Mutex<FxHashMap<Arc<str>, Arc<Route>>>,
    /// The links over which other processes send, by the incarnation of each of the sender's devices.
    inbounds: RwLock<FxHashMap<u64, Arc<Inbound>>>,
    ports: Mutex<Option<Ports>>,
    closed: AtomicBool,
}

impl LinkTable {
    /// Makes a table without links or sockets; sockets are opened when a link is first needed. `address` is
    /// the address at which this process serves, or empty.
    pub(crate) fn new(
        transport: Transport,
        connections: usize,
        runtime: Handle,
        (task, incarnations): (&TaskName, Vec<u64>),
        address: &str,
        cluster: Cluster,
    ) -> Arc<LinkTable> {
        let name = if address.is_empty() { task.to_string() } else { format!("{task} at {address}") };
        let caller = Caller { name, worker: rand::random(), incarnations, ..Caller::default() };
        Arc::new(LinkTable {
            transport,
            secondaries: connections.saturating_sub(1),
            runtime,
            bind: addresses(address),
            caller,
            cluster,
            process: process_number(),
            token: rand::random(),
            fabric: OnceLock::new(),
            worker: OnceLock::new(),
            by_address: Mutex::default(),
            inbounds: RwLock::default(),
            ports: Mutex::default(),
            closed: AtomicBool::new(false),
        })
    }

    /// Sets the worker whose tensors are sent and received; must be called once.
    pub(crate) fn set_worker(&self, worker: Weak<Worker>) {
        let _ = self.worker.set(worker);
    }

    /// Sets the fabric by which links over TCP exchange large tensors; must be called before the first link.
    pub(crate) fn set_fabric(&self, fabric: Arc<dyn Fabric>) {
        let _ = self.fabric.set(fabric);
    }

    /// Returns the kind of this process's fabric.
    pub(crate) fn fabric_kind(&self) -> Option<&'static str> {
        self.fabric.get().map(|fabric| fabric.kind())
    }

    pub(super) fn worker(&self) -> Weak<Worker> {
        self.worker.get().cloned().unwrap_or_default()
    }

    /// Returns the route to the address of `peer`; the first call for an address makes the route.
    pub(crate) fn route(&self, peer: &Arc<Peer>) -> Arc<Route> {
        let mut by_address = self.by_address.lock();
        by_address.entry(peer.address().into()).or_insert_with(|| Route::new(peer.clone())).clone()
    }

    /// Returns the link over which a device's tensors come, if there is one.
    pub(crate) fn inbound(&self, incarnation: u64) -> Option<Arc<Inbound>> {
        self.inbounds.read().get(&incarnation).cloned()
    }

    /// Returns whether links are enabled and not closed.
    pub(super) fn can_connect(&self) -> bool {
        self.transport != Transport::Grpc && !self.closed.load(Ordering::Acquire)
    }

    /// Returns the invitation to send to a process that requests one; the first call opens the listening
    /// sockets.
    pub(crate) fn invitation(self: &Arc<Self>) -> Option<String> {
        if !self.can_connect() {
            return None;
        }
        let mut ports = self.ports.lock();
        if ports.is_none() {
            *ports = Ports::open(self, self.transport, &self.bind)
                .inspect_err(|error| {
                    tracing::warn!("tensors come over gRPC: cannot listen for them: {error}")
                })
                .ok();
        }
        ports.as_ref().map(|ports| {
            let (process, worker, token) = (self.process, self.caller.worker, self.token);
            let (unix, tcp) = (ports.unix.clone(), ports.tcp);
            Invitation { process, worker, token, host: boot_id(), unix, tcp }.to_text()
        })
    }

    /// Begins a handshake: requests an invitation, and then connects on a separate thread.
    pub(super) fn begin_handshake(self: &Arc<Self>, route: &Arc<Route>) {
        let (link_table, route) = (self.clone(), route.clone());
        self.runtime.spawn(async move {
            match request_invitation(&route.peer).await {
                Err(status) => {
                    tracing::debug!("no handshake with {}: {status}", route.name());
                    route.set_unlinked(RETRY_AFTER);
                }
                Ok(None) => route.set_unlinked(FOREIGN_RETRY_AFTER),
                Ok(Some((invitation, fabric_kind))) => {
                    let (again, thread) = (route.clone(), handshake_thread());
                    if thread
                        .spawn(move || {
                            link_table.connect_to_best(&route, &invitation, fabric_kind.as_deref())
                        })
                        .is_err()
                    {
                        again.set_unlinked(FOREIGN_RETRY_AFTER);
                    }
                }
            }
        });
    }

    /// Opens a link to the first address of the invitation that accepts a connection, the fastest being tried
    /// first.
    fn connect_to_best(
        self: &Arc<Self>,
        route: &Arc<Route>,
        invitation: &Invitation,
        fabric_kind: Option<&str>,
    ) {
        let mut failed = None;
        for endpoint in invitation.endpoints(self.transport, &boot_id()) {
            let mut caller = self.caller_for(route.peer.address());
            let lender = self.lender(&endpoint, fabric_kind);
            caller.fabric = lender.as_ref().map(|(_, text)| text.clone());
            match self.connect(&endpoint, invitation, caller) {
                Ok((connection, locality)) => {
                    let link = Outbound::new(
                        connection,
                        (route.name(), invitation.worker),
                        locality,
                        self.runtime.clone(),
                    );
                    if let Some((lender, _)) = lender {
                        link.offer_fabric(lender);
                    }
                    return self.run_outbound(route, link);
                }
                Err(error) => failed = Some((endpoint, error)),
            }
        }
        if let Some((endpoint, error)) = failed {
            tracing::warn!("tensors to {} go over gRPC: {endpoint:?}: {error}", route.name());
        }
        route.set_unlinked(FOREIGN_RETRY_AFTER);
    }

    /// Returns this end of a link's fabric, and the text for the other end; `None` if the ends do not have fabrics of one kind,
    /// or the link is not over TCP.
    fn lender(&self, endpoint: &Endpoint, other: Option<&str>) -> Option<(Box<dyn Lender>, String)> {
        let fabric = self.fabric.get().filter(|fabric| other == Some(fabric.kind()))?;
        match endpoint {
            Endpoint::Unix(_) => None,
            Endpoint::Tcp(_) => fabric
                .lender()
                .inspect_err(|error| tracing::warn!("large tensors go by TCP: {error}"))
                .ok()
                .filter(|(_, text)| text.len() <= MAX_TEXT && !text.contains('\n')),
        }
    }

    /// Returns the description of this worker for the process that listens at `address`.
    fn caller_for(&self, address: &str) -> Caller {
        let receivers = self.cluster.tasks().filter(|(_, other)| *other == address);
        Caller { receivers: receivers.map(|(task, _)| task.to_string()).collect(), ..self.caller.clone() }
    }

    /// Opens the connections of a link. Returns them, and whether the other end is in this process, on this
    /// machine or remote.
    fn connect(
        &self,
        endpoint: &Endpoint,
        invitation: &Invitation,
        caller: Caller,
    ) -> io::Result<(Connection, Locality)> {
        let (process, token, link) = (invitation.process, invitation.token, rand::random());
        let hello = |role| Hello { process, token, link, role };
        let main = |secondaries: usize| hello(Role::Main { secondaries: secondaries as u16, caller });
        match endpoint {
            Endpoint::Unix(name) => {
                let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
                let socket = Socket::unix(stream);
                // The hand-off table must exist before the hello is sent, because the other end looks for it
                // on receipt.
                let locality = match process == self.process && self.transport == Transport::Auto {
                    true => Locality::SameProcess(HandoffTable::new(link)),
                    false => Locality::SameHost,
                };
                send_hello(&socket, &main(0))?;
                Ok((Connection::new(socket, Vec::new()), locality))
            }
            Endpoint::Tcp(address) => {
                let open = |hello: &Hello| {
                    let socket = Socket::tcp(TcpStream::connect_timeout(address, HANDSHAKE_TIMEOUT)?)?;
                    send_hello(&socket, hello)?;
                    Ok::<_, io::Error>(socket)
                };
                let mut secondaries = Vec::new();
                for _ in 0..self.secondaries {
                    if let Socket::Tcp(secondary) = open(&hello(Role::Secondary))? {
                        secondaries.push(secondary);
                    }
                }
                Ok((Connection::new(open(&main(secondaries.len()))?, secondaries), Locality::Remote))
            }
        }
    }

    /// Makes a new link available, and handles its frames until it ends.
    fn run_outbound(self: &Arc<Self>, route: &Arc<Route>, link: Arc<Outbound>) {
        let worker = self.worker();
        route.set_linked(link.clone());
        let end = OutboundCleanup { link_table: self.clone(), route: route.clone(), link: link.clone() };
        // If the link table was closed before the link was set, no other code closes this link.
        if self.closed.load(Ordering::Acquire) {
            link.close();
        }
        if let Some(worker) = worker.upgrade() {
            worker.steps.for_each(|step| step.rendezvous.link_up(route, &link));
        }
        self.runtime.spawn(async move {
            if let Err(error) = link.listen(&worker).await {
                tracing::debug!("the link to {} ended: {error}", end.route.name());
            }
            drop(end);
        });
    }

    /// Adds a link that another process has opened, and handles its frames until it ends.
    pub(super) fn add_inbound(self: &Arc<Self>, connection: Connection, link: u64, caller: Caller) {
        let inbound = Inbound::new(connection, caller, HandoffTable::find(link));
        {
            let mut inbounds = self.inbounds.write();
            for incarnation in inbound.incarnations() {
                inbounds.insert(*incarnation, inbound.clone());
            }
        }
        let end = InboundCleanup { link_table: self.clone(), inbound: inbound.clone() };
        if self.closed.load(Ordering::Acquire) {
            inbound.close();
        }
        let worker = self.worker();
        if inbound.has_fabric_offer() {
            let (offered, fabric) = (inbound.clone(), self.fabric.get().cloned());
            self.runtime.spawn_blocking(move || offered.answer_fabric(fabric.as_ref()));
        }
        self.runtime.spawn(async move {
            if let Err(error) = inbound.serve(&worker).await {
                tracing::debug!("the link {inbound:?} ended: {error}");
            }
            drop(end);
        });
    }

    /// Returns the numbers of open links over which this worker sends and over which it receives.
    pub(crate) fn links(&self) -> (usize, usize) {
        let (links, inbounds) = self.all();
        (links.len(), inbounds.len())
    }

    /// Announces over all links that this process is shutting down.
    pub(crate) fn announce_shutdown(&self) {
        let (links, inbounds) = self.all();
        links.iter().for_each(|link| link.announce_shutdown());
        inbounds.iter().for_each(|inbound| inbound.announce_shutdown());
    }

    /// Closes all links, and accepts no more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        drop(self.ports.lock().take());
        let (links, inbounds) = self.all();
        links.iter().for_each(|link| link.close());
        inbounds.iter().for_each(|inbound| inbound.close());
    }

    /// Returns the open links: those over which this worker sends, and those over which it receives.
    fn all(&self) -> (Vec<Arc<Outbound>>, Vec<Arc<Inbound>>) {
        let links = self.by_address.lock().values().filter_map(|route| route.link()).collect();
        let mut inbounds: Vec<Arc<Inbound>> = self.inbounds.read().values().cloned().collect();
        // `self.inbounds` has an entry for each device of the sending process, so a link may occur several times.
        inbounds.sort_unstable_by_key(Arc::as_ptr);
        inbounds.dedup_by(|a, b| Arc::ptr_eq(a, b));
        (links, inbounds)
    }
}

/// A guard whose drop cleans up after a link over which this worker sent: cancels the steps that sent over
/// it.
struct OutboundCleanup {
    link_table: Arc<LinkTable>,
    route: Arc<Route>,
    link: Arc<Outbound>,
}

impl Drop for OutboundCleanup {
    fn drop(&mut self) {
        self.route.set_unlinked(RETRY_AFTER);
        self.link.close();
        if let Some(worker) = self.link_table.worker().upgrade() {
            worker.steps.for_each(|step| {
                if step.rendezvous.needs_link(&self.route, &self.link) {
                    step.cancel(self.link.broken_error());
                }
            });
        }
        self.link.abandon_shared();
    }
}

/// A guard whose drop cleans up after a link over which this worker received: fails the receives that wait
/// for its values.
struct InboundCleanup {
    link_table: Arc<LinkTable>,
    inbound: Arc<Inbound>,
}

impl Drop for InboundCleanup {
    fn drop(&mut self) {
        self.inbound.close();
        self.link_table.inbounds.write().retain(|_, other| !Arc::ptr_eq(other, &self.inbound));
        if let Some(worker) = self.link_table.worker().upgrade() {
            worker.steps.for_each(|step| step.rendezvous.fail_receivers_of(&self.inbound));
        }
    }
}

impl fmt::Debug for LinkTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkTable({} of {})", self.transport, self.caller.name)
    }
}

/// Returns the builder of a thread that performs a blocking handshake.
pub(super) fn handshake_thread() -> std::thread::Builder {
    std::thread::Builder::new().name("anabranch-meet".into()).stack_size(HANDSHAKE_STACK)
}

/// Returns the IP addresses of `of`, which is `host:port`; empty if the host's name is unknown.
fn addresses(of: &str) -> Vec<IpAddr> {
    let found = of.to_socket_addrs().map(|found| found.map(|address| address.ip()).collect());
    found.unwrap_or_default()
}

/// Requests a task's invitation, and the kind of its fabric; `None` from a foreign task.
async fn request_invitation(peer: &Peer) -> Result<Option<(Invitation, Option<String>)>, Status> {
    let deadline = Some(Instant::now() + INVITATION_TIMEOUT);
    let send = |channel| async move {
        let mut request = tonic::Request::new(GetStatusRequest {});
        request.metadata_mut().insert(INVITATION_REQUEST_KEY, MetadataValue::from_static("1"));
        WorkerServiceClient::new(channel).get_status(request).await
    };
    let answer = peer.call("GetStatus", RetryPolicy::Never, deadline, send).await?;
    let text = |key: &str| answer.metadata().get(key).and_then(|text| text.to_str().ok());
    let fabric_kind = text(FABRIC_KEY).map(str::to_owned);
    Ok(text(INVITATION_KEY).and_then(Invitation::parse).map(|invitation| (invitation, fabric_kind)))
}

/// Sends a hello, and waits for the welcome.
fn send_hello(socket: &Socket, hello: &Hello) -> io::Result<()> {
    let bytes = hello.encode();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        rest = &rest[socket.send(&[IoSlice::new(rest)], None, true)?..];
    }
    let mut answer = [0; WELCOME.len()];
    read_within(HANDSHAKE_TIMEOUT, socket, &mut answer)?;
    if answer == WELCOME { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Fills `into` from the socket within `time`, even if the bytes arrive slowly.
pub(super) fn read_within(time: Duration, socket: &Socket, mut into: &mut [u8]) -> io::Result<()> {
    let end = Instant::now() + time;
    let mut unwanted = VecDeque::new();
    while !into.is_empty() {
        match socket.receive(into, &mut unwanted, Some(end))? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => into = &mut into[read..],
        }
        unwanted.clear();
    }
    Ok(())
}

/// Returns the random number of this process, which all of its workers share.
fn process_number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(rand::random)
}

/// Returns the identity of this machine's current boot; empty if the system does not provide one.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WorkerConfig;

    #[tokio::test]
    async fn a_worker_has_one_number_in_invitations_and_hellos() -> Result<(), Box<dyn std::error::Error>> {
        let task = || Worker::new(WorkerConfig::new(TaskName::new("w", 0), Cluster::new()));
        let (one, other) = (task()?, task()?);
        let number = |worker: &Worker| {
            let invitation = worker.link_table.invitation()?;
            Invitation::parse(&invitation).map(|invitation| invitation.worker)
        };
        assert_eq!(number(&one), Some(one.link_table.caller_for("").worker));
        assert_ne!(number(&one), number(&other));
        Ok(())
    }
}
