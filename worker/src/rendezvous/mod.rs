//! The rendezvous of a step in one process of a cluster: what is for other tasks is pushed to those that a link leads
//! to, what they send comes by itself or is fetched.

mod arrivals;
mod fetches;
mod pushes;

use crate::fetch::{acknowledge, fetch};
use crate::peers::Peers;
use crate::replication::Primary;
use crate::transfers::Transfers;
use crate::transport::{Inbound, Outbound, Road, Roads};
use arrivals::Arrivals;
use device::{Device, DeviceTensor};
use device::rendezvous::{Receive, Rendezvous, RendezvousKey, Sent};
use device::{Error, LocalRendezvous, window};
pub(crate) use fetches::to_error;
use fetches::{Answer, Fetches};
use parking_lot::Mutex;
use proto::channel::Peer;
use proto::remote::request_id;
use pushes::Pushes;
use std::sync::{Arc, OnceLock, Weak};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// Values of one step. Those from elsewhere can be received once [`StepRendezvous::bind`] said how.
#[derive(Debug)]
pub(crate) struct StepRendezvous {
    step_id: i64,
    local: LocalRendezvous,
    remote: OnceLock<Remote>,
    /// Itself, where what is sent may have to wait.
    own: OnceLock<Weak<StepRendezvous>>,
    fetches: Arc<Fetches>,
    pushes: Pushes,
    arrivals: Arc<Arrivals>,
}

/// How to reach other tasks.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) runtime: Handle,
    pub(crate) peers: Arc<Peers>,
    pub(crate) roads: Arc<Roads>,
    /// What the names of this task's own devices begin with.
    pub(crate) own_prefix: Arc<str>,
    pub(crate) transfers: Arc<Transfers>,
    /// Of a task that two processes hold.
    pub(crate) primary: Option<Arc<Primary>>,
}

impl StepRendezvous {
    pub(crate) fn new(step_id: i64) -> StepRendezvous {
        StepRendezvous {
            step_id,
            local: LocalRendezvous::new(),
            remote: OnceLock::new(),
            own: OnceLock::new(),
            fetches: Arc::default(),
            pushes: Pushes::default(),
            arrivals: Arc::default(),
        }
    }

    /// Says how to reach other tasks, and which of them the step sends to; the first word holds.
    pub(crate) fn bind(self: &Arc<Self>, remote: Remote, receivers: &Arc<[Arc<Road>]>) {
        if remote.primary.is_some() {
            // Whoever was first said the same.
            let _is_first = self.own.set(Arc::downgrade(self));
        }
        if self.remote.set(remote).is_ok() {
            self.pushes.will_go_to(self.step_id, receivers.clone());
        }
    }

    /// Leaves a value here, whatever the key says of where its receiver is.
    pub(crate) fn send_local(&self, key: &Arc<RendezvousKey>, sent: Sent) -> device::Result<()> {
        self.local.send(key, sent)
    }

    /// Receives what is sent here, whatever the key says of where that is.
    pub(crate) fn recv_local(&self, key: &Arc<RendezvousKey>, receive: Receive) {
        self.local.recv(key, receive);
    }

    pub(crate) fn peer_restarted(&self) -> bool {
        self.fetches.peer_restarted()
    }

    /// What is still awaited from other tasks, for messages; empty if nothing is.
    pub(crate) fn awaited(&self) -> String {
        self.fetches.awaited()
    }

    /// A value came over a link.
    pub(crate) fn arrived(&self, from: &Arc<Inbound>, key: &Arc<str>, sent: Sent) {
        self.arrivals.came(from, key, &sent);
        if self.local.put(key, sent).is_err() {
            self.arrivals.taken(key);
        }
    }

    /// A value came the way back: nobody counts it.
    pub(crate) fn came_back(&self, key: &Arc<str>, sent: Sent) {
        // A step that has ended wants it no more.
        let _ = self.local.put(key, sent);
    }

    /// A value is to be had for the asking.
    pub(crate) fn offered(&self, from: &Arc<Inbound>, key: &Arc<str>) {
        self.arrivals.offered(from, key);
        if self.local.is_awaited(key) {
            self.ask_for(key);
        }
    }

    fn ask_for(&self, key: &Arc<str>) {
        if let Some(from) = self.arrivals.accept(key) {
            from.want(self.step_id, key);
        }
    }

    /// A link has broken by which values came: what waits for them fails, by name.
    pub(crate) fn lost(&self, link: &Arc<Inbound>) {
        self.local.fail_receivers(|key| link.carries(key), &link.broke());
    }

    /// The step has sent everything: its receivers need not hear how it ends.
    pub(crate) fn succeed(&self) {
        self.pushes.succeed();
    }

    /// As [`Rendezvous::abort`], and unless the step had [succeeded](StepRendezvous::succeed) its receivers are told.
    pub(crate) fn fail(&self, reason: &Error) {
        self.pushes.fail(self.step_id, reason);
        self.abort(reason.clone());
    }

    /// A link has come up: what was kept until then leaves.
    pub(crate) fn link_up(&self, road: &Arc<Road>, link: &Arc<Outbound>) {
        self.pushes.link_up(self.step_id, road, link);
        for key in self.pushes.kept_for(road) {
            if let Some(sent) = self.local.take(&key) {
                self.or_fail(self.push(link, &key, sent));
            }
        }
        self.flush();
    }

    /// The receiver asks for what was offered.
    pub(crate) fn wanted(&self, link: &Arc<Outbound>, key: &Arc<str>) {
        if let Some(sent) = self.local.take(key) {
            self.or_fail(self.pushes.answer(link, self.step_id, key, &sent));
        }
        self.flush();
    }

    /// What was kept and cannot be sent after all is lost, and its receivers are told.
    fn or_fail(&self, sent: device::Result<()>) {
        if let Err(error) = sent {
            self.fail(&error);
        }
    }

    pub(crate) fn has_pushed_over(&self, link: &Arc<Outbound>) -> bool {
        self.pushes.used(link)
    }

    /// Sends over a link, or keeps and offers what is too much for now.
    fn push(&self, link: &Arc<Outbound>, key: &Arc<str>, sent: Sent) -> device::Result<()> {
        self.local.check()?;
        if !self.pushes.push(link, self.step_id, key, &sent)? {
            self.local.put(key, sent)?;
            self.pushes.offer(link, self.step_id, key)?;
        }
        Ok(())
    }

    /// How to reach the receiver, if that is another task.
    fn remote_for(&self, key: &RendezvousKey) -> Option<&Remote> {
        self.remote.get().filter(|remote| !key.dst_device.starts_with(&*remote.own_prefix))
    }

    /// Sends to another task.
    fn send_on(&self, remote: &Remote, key: &Arc<RendezvousKey>, sent: Sent) -> device::Result<()> {
        // A task that the cluster does not have may still ask.
        let Some(road) = remote.peers.road_to(&key.dst_device) else { return self.local.send(key, sent) };
        if let Some(link) = road.find(&remote.roads) {
            return self.push(&link, &key.text, sent);
        }
        let is_there = |key: &Arc<str>| {
            let sent = self.local.take(key);
            sent.is_some_and(|sent| self.local.put(key, sent).is_ok())
        };
        // The value first: a link that finds its key takes it along. One that comes up before that is found here.
        self.local.send(key, sent)?;
        self.pushes.keep(&road, &key.text, is_there);
        if let Some(link) = road.link() {
            self.link_up(&road, &link);
        }
        Ok(())
    }

    /// Sends to another task once the standby has what has changed here: what follows from a change is not seen
    /// elsewhere before the change is safe.
    fn send_when_settled(&self, primary: &Arc<Primary>, key: &Arc<RendezvousKey>, sent: Sent) {
        let bound = self.own.get().and_then(Weak::upgrade).zip(self.remote.get().cloned());
        // A step that is gone sends to nobody.
        let Some((own, remote)) = bound else { return };
        let (primary, key) = (primary.clone(), key.clone());
        remote.runtime.clone().spawn(async move {
            let settled = primary.settle(None).await.map_err(to_error);
            match settled.and_then(|()| own.send_on(&remote, &key, sent)) {
                Ok(()) => own.flush(),
                Err(error) => own.fail(&error),
            }
        });
    }

    fn receive(&self, remote: &Remote, key: &Arc<RendezvousKey>, receive: Receive) {
        let peer = match remote.peers.source_of(key) {
            Ok(peer) => peer,
            Err(status) => return receive(Err(to_error(status))),
        };
        let answer = self.fetches.open(key, &peer, receive, remote.transfers.watch(self.step_id, key));
        let link = remote.roads.inbound(key.src_incarnation);
        match link.filter(|link| remote.peers.are_own() && link.is_for(&key.dst_device)) {
            Some(link) => {
                self.await_push(key, move |result| answer.finish(result));
                if link.is_broken() {
                    self.lost(&link);
                }
            }
            None => self.fetch(remote, key, peer, answer),
        }
        self.ask_for(&key.text);
    }

    fn await_push(
        &self,
        key: &Arc<RendezvousKey>,
        then: impl FnOnce(device::Result<Sent>) + Send + 'static,
    ) {
        let (arrivals, text) = (self.arrivals.clone(), key.text.clone());
        self.local.recv(
            key,
            Box::new(move |result| {
                arrivals.taken(&text);
                then(result);
            }),
        );
    }

    /// Asks for a value over gRPC. A link may come up meanwhile, and bring it first.
    fn fetch(&self, remote: &Remote, key: &Arc<RendezvousKey>, peer: Arc<Peer>, answer: Answer) {
        let answer = Arc::new(Mutex::new(Some(answer)));
        let (pushed, came) = (answer.clone(), CancellationToken::new());
        let on_push = came.clone();
        self.await_push(key, move |result| {
            let answer = pushed.lock().take();
            if let Some(answer) = answer {
                answer.finish(result);
            }
            on_push.cancel();
        });
        let (key, step, request) = (key.clone(), self.step_id, request_id());
        remote.runtime.spawn(async move {
            tokio::select! {
                biased;
                () = came.cancelled() => {}
                // The step's own deadline ends the wait, once it has said what it waits for.
                result = fetch(&peer, request, step, &key, None) => {
                    let keeps_it = result.as_ref().is_ok_and(|reply| reply.require_ack);
                    let answer = answer.lock().take();
                    if let Some(answer) = answer {
                        answer.give(result);
                    }
                    if keeps_it {
                        acknowledge(&peer, request).await;
                    }
                }
            }
        });
    }
}

impl Rendezvous for StepRendezvous {
    fn send(&self, key: &Arc<RendezvousKey>, sent: Sent) -> device::Result<()> {
        let Some(remote) = self.remote_for(key) else { return self.local.send(key, sent) };
        match remote.primary.as_ref().filter(|primary| primary.is_behind()) {
            None => self.send_on(remote, key, sent),
            Some(primary) => {
                self.send_when_settled(primary, key, sent);
                Ok(())
            }
        }
    }

    fn recv(&self, key: &Arc<RendezvousKey>, receive: Receive) {
        match self.remote.get() {
            Some(remote) if !key.src_device.starts_with(&*remote.own_prefix) => {
                self.receive(remote, key, receive);
            }
            _ => self.local.recv(key, receive),
        }
    }

    fn lends(&self, key: &Arc<RendezvousKey>, device: &Arc<Device>, tensor: &DeviceTensor) -> bool {
        // What waits until a standby has what changed waits on the host.
        let remote = self.remote_for(key).filter(|remote| remote.primary.is_none());
        let Some(remote) = remote.filter(|_| tensor.memory.len() >= window::LEAST) else { return false };
        let road = remote.peers.road_to(&key.dst_device);
        let link = road.and_then(|road| road.find(&remote.roads));
        link.is_some_and(|link| link.is_seen(key, device, tensor))
    }

    fn flush(&self) {
        self.pushes.flush();
    }

    fn abort(&self, reason: Error) {
        self.fetches.end(&reason);
        self.local.abort(reason);
        self.arrivals.end();
    }
}
