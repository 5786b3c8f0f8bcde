//! TCP relays between tasks, by which tests cut connections: one relay for each ordered pair of tasks.

use super::Fallible;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// The state of a relay's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    Up,
    /// Connections stay open, and no byte passes until the state is `Up` again, as in a network that drops all packets.
    Stalled,
    /// Open connections are closed, and new connections are closed at once.
    Down,
}

/// A listener that forwards its connections to another address.
#[derive(Debug)]
pub struct Relay {
    pub address: SocketAddr,
    link: watch::Sender<LinkState>,
}

impl Relay {
    /// Starts a relay to `target`; the relay listens until it is dropped.
    pub fn start(runtime: &Handle, target: SocketAddr) -> Fallible<Relay> {
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let (link, state) = watch::channel(LinkState::Up);
        let address = listener.local_addr()?;
        runtime.spawn(listen(listener, target, state));
        Ok(Relay { address, link })
    }

    /// Sets the state of all connections, present and future.
    pub fn set(&self, link: LinkState) {
        self.link.send_replace(link);
    }
}

async fn listen(listener: TcpListener, target: SocketAddr, mut link: watch::Receiver<LinkState>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // The loop ends when the relay is dropped.
            () = async { while link.changed().await.is_ok() {} } => return,
        };
        if let Ok((near, _)) = accepted {
            tokio::spawn(forward(near, target, link.clone()));
        }
    }
}

/// Forwards one connection in both directions until either end closes it or the state is `Down`.
async fn forward(near: TcpStream, target: SocketAddr, mut link: watch::Receiver<LinkState>) {
    if !wait_while_stalled(&mut link).await {
        return;
    }
    let Ok(far) = TcpStream::connect(target).await else { return };
    for stream in [&near, &far] {
        // Nagle's algorithm would delay small messages.
        let _ = stream.set_nodelay(true);
    }
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::select! {
        () = carry(near_in, far_out, link.clone()) => {}
        () = carry(far_in, near_out, link.clone()) => {}
        () = wait_until_down(link) => {}
    }
}

/// Copies bytes in one direction until the connection ends or the state is `Down`.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut link: watch::Receiver<LinkState>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if read == 0 || !wait_while_stalled(&mut link).await || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// Waits while the state is `Stalled`. Returns whether the state is `Up` afterwards.
async fn wait_while_stalled(link: &mut watch::Receiver<LinkState>) -> bool {
    link.wait_for(|link| *link != LinkState::Stalled).await.is_ok_and(|link| *link == LinkState::Up)
}

/// Waits until the state is `Down` or the relay was dropped.
async fn wait_until_down(mut link: watch::Receiver<LinkState>) {
    // An error means that the relay was dropped.
    let _ = link.wait_for(|link| *link == LinkState::Down).await;
}
