//! The server by which a process takes part in its groups.

use super::driver::Driver;
use crate::error::{Error, Result};
use crate::server::{Server, ServerConfig};
use graph::{Code, TaskName};
use parking_lot::Mutex;
use proto::{Cluster, Status};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::net::TcpSocket;
use worker::gpu_options::{GpuOptions, GpuSelection};
use worker::{Transport, Worker};

/// A server, and the runtime that handles its connections. Dropping it closes them.
pub(super) struct Process {
    driver: Arc<Driver>,
    worker: Arc<Worker>,
    /// For each list of members, by their incarnations, the number of groups that this process has joined.
    joined: Mutex<BTreeMap<Vec<u64>, u64>>,
}

impl Process {
    /// Starts the server of a task, which listens at the bound `socket`.
    ///
    /// # Errors
    /// `Internal` if the operating system cannot start a thread, and those of [`Server::in_runtime`].
    pub(super) fn start(
        cluster: Cluster,
        task: TaskName,
        socket: TcpSocket,
        transport: Transport,
    ) -> Result<Arc<Process>> {
        let internal = |e: io::Error| {
            Error::Status(Status::new(Code::Internal, format!("the server of {task} cannot start: {e}")))
        };
        let driver = Driver::start().map_err(internal)?;
        let runtime = driver.handle().ok_or_else(ended)?;
        let gpus = GpuOptions { visible: GpuSelection::Listed(Vec::new()), ..GpuOptions::default() };
        let config = ServerConfig { cluster, task: task.clone(), gpus, transport, ..ServerConfig::default() };
        let entered = runtime.enter();
        let server = Server::in_runtime(config)?;
        let worker = server.worker().clone();
        let listener = socket.listen(BACKLOG).map_err(internal)?;
        drop(entered);
        runtime.spawn(async move { server.serve(listener, std::future::pending(), Duration::ZERO).await });
        Ok(Arc::new(Process { driver: Arc::new(driver), worker, joined: Mutex::default() }))
    }

    /// Returns the thread that drives the runtime while no thread of the program does.
    pub(super) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    pub(super) fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Counts a group of these members. Returns the number of earlier groups of the same members.
    pub(super) fn count_group(&self, members: &[u64]) -> u64 {
        let mut joined = self.joined.lock();
        let count = joined.entry(members.to_vec()).or_default();
        *count += 1;
        *count - 1
    }

    /// Runs a future on the server's runtime and blocks until it is ready.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T> {
        let runtime = self.driver.handle().ok_or_else(ended)?;
        let (answer, answered) = mpsc::sync_channel(1);
        runtime.spawn(async move {
            // Sending fails only if the waiting thread has ended.
            let _ = answer.send(future.await);
        });
        Ok(answered.recv().map_err(|_| ended())??)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.worker.close_links();
        self.driver.end();
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({})", self.worker.task())
    }
}

fn ended() -> Status {
    Status::new(Code::Internal, "the server of the process group has ended")
}

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Binds the address that a cluster gives a task; all interfaces if its host is not one of this machine.
///
/// # Errors
/// `Unavailable` if the port is taken.
pub(super) fn bind(task: &TaskName, address: &str) -> Result<TcpSocket, Status> {
    let failed =
        |e: io::Error| Status::new(Code::Unavailable, format!("{task} cannot listen at {address}: {e}"));
    let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
    let port = addresses.first().map_or(0, SocketAddr::port);
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses.into_iter().chain([(Ipv4Addr::UNSPECIFIED, port).into()]) {
        match bind_to(address) {
            Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => last = e,
            bound => return bound.map_err(failed),
        }
    }
    Err(failed(last))
}

/// Binds an address, which can be bound again as long as nothing listens at it.
pub(super) fn bind_to(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
