//! Links between tasks that can be cut: each task reaches each other one through a relay of its own.

use super::Fallible;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// How a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Up,
    /// Connections stand, and no byte passes until it is up again: the network is slow, or drops everything.
    Held,
    /// Connections break, and new ones are closed at once.
    Down,
}

/// Passes connections on to an address.
#[derive(Debug)]
pub struct Relay {
    pub address: SocketAddr,
    link: watch::Sender<Link>,
}

impl Relay {
    /// A relay to `target`, which listens until it is dropped.
    pub fn start(runtime: &Handle, target: SocketAddr) -> Fallible<Relay> {
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let (link, state) = watch::channel(Link::Up);
        let address = listener.local_addr()?;
        runtime.spawn(listen(listener, target, state));
        Ok(Relay { address, link })
    }

    pub fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

async fn listen(listener: TcpListener, target: SocketAddr, mut link: watch::Receiver<Link>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // The relay is gone.
            () = async { while link.changed().await.is_ok() {} } => return,
        };
        if let Ok((near, _)) = accepted {
            tokio::spawn(pass(near, target, link.clone()));
        }
    }
}

/// Carries one connection, until either end closes it or the link breaks.
async fn pass(near: TcpStream, target: SocketAddr, mut link: watch::Receiver<Link>) {
    if !passes(&mut link).await {
        return;
    }
    let Ok(far) = TcpStream::connect(target).await else { return };
    for stream in [&near, &far] {
        // Without it, it is slow.
        let _ = stream.set_nodelay(true);
    }
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::select! {
        () = carry(near_in, far_out, link.clone()) => {}
        () = carry(far_in, near_out, link.clone()) => {}
        () = is_down(link) => {}
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut link: watch::Receiver<Link>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if read == 0 || !passes(&mut link).await || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// Waits while the link is held; whether it is up then.
async fn passes(link: &mut watch::Receiver<Link>) -> bool {
    link.wait_for(|link| *link != Link::Held).await.is_ok_and(|link| *link == Link::Up)
}

async fn is_down(mut link: watch::Receiver<Link>) {
    // The relay going away means the same.
    let _ = link.wait_for(|link| *link == Link::Down).await;
}
