//! The rendezvous of a step in one process of a cluster. Values for other tasks are pushed over links where
//! links exist, and wait to be fetched otherwise; values from other tasks arrive over links or are fetched.

mod arrivals;
mod fetches;
mod pushes;

use crate::collective::COLLECTIVE_EDGE;
use crate::fetch::{acknowledge, fetch};
use crate::peers::Peers;
use crate::replication::Primary;
use crate::transfers::Transfers;
use crate::transport::{Inbound, LinkTable, Outbound, Route};
use arrivals::Arrivals;
use device::rendezvous::{Receive, Rendezvous, RendezvousKey, Sent};
use device::{Device, DeviceTensor};
use device::{Error, LocalRendezvous, peer_buffer};
pub(crate) use fetches::to_error;
use fetches::{FetchAnswer, Fetches};
use parking_lot::Mutex;
use proto::channel::Peer;
use proto::remote::request_id;
use pushes::Pushes;
use std::sync::{Arc, OnceLock, Weak};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// The rendezvous of one step. It can receive values from other tasks after [`StepRendezvous::bind`].
#[derive(Debug)]
pub(crate) struct StepRendezvous {
    step_id: i64,
    /// The values sent and received within this process.
    local: LocalRendezvous,
    remote: OnceLock<Remote>,
    /// A reference to this object, for sends that wait until the standby has the changes made before them.
    self_ref: OnceLock<Weak<StepRendezvous>>,
    fetches: Arc<Fetches>,
    pushes: Pushes,
    arrivals: Arc<Arrivals>,
}

/// The objects by which a step sends to and receives from other tasks.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) runtime: Handle,
    pub(crate) peers: Arc<Peers>,
    pub(crate) link_table: Arc<LinkTable>,
    /// The prefix of the names of this task's devices, such as `/job:ps/replica:0/task:1/`.
    pub(crate) own_prefix: Arc<str>,
    pub(crate) transfers: Arc<Transfers>,
    /// The replication state, if the task is replicated.
    pub(crate) primary: Option<Arc<Primary>>,
}

impl StepRendezvous {
    pub(crate) fn new(step_id: i64) -> StepRendezvous {
        StepRendezvous {
            step_id,
            local: LocalRendezvous::new(),
            remote: OnceLock::new(),
            self_ref: OnceLock::new(),
            fetches: Arc::default(),
            pushes: Pushes::default(),
            arrivals: Arc::default(),
        }
    }

    /// Enables transfers to and from other tasks: `receivers` are the routes to the tasks that the step sends
    /// to. Only the first call has an effect.
    pub(crate) fn bind(self: &Arc<Self>, remote: Remote, receivers: &Arc<[Arc<Route>]>) {
        if remote.primary.is_some() {
            // An error means that an earlier call has set the same value.
            let _is_first = self.self_ref.set(Arc::downgrade(self));
        }
        if self.remote.set(remote).is_ok() {
            self.pushes.set_receivers(self.step_id, receivers.clone());
        }
    }

    /// Adds tasks whose devices take part in collectives of the step. These tasks are told of the step's failure even
    /// if their part of the step belongs to the session of another master.
    pub(crate) fn add_members(&self, routes: Vec<Arc<Route>>) {
        self.pushes.add_members(self.step_id, routes);
    }

    /// Sends a value within this process, whatever the receiving device in the key.
    pub(crate) fn send_local(&self, key: &Arc<RendezvousKey>, sent: Sent) -> device::Result<()> {
        self.local.send(key, sent)
    }

    /// Receives a value that is sent within this process, whatever the sending device in the key.
    pub(crate) fn recv_local(&self, key: &Arc<RendezvousKey>, receive: Receive) {
        self.local.recv(key, receive);
    }

    /// Returns whether a peer has reported that it lost its state.
    pub(crate) fn has_restarted_peer(&self) -> bool {
        self.fetches.has_restarted_peer()
    }

    /// Returns the end of an error message naming the values that the step awaits from other tasks; empty if there are
    /// none.
    pub(crate) fn awaited(&self) -> String {
        self.fetches.awaited()
    }

    /// Returns the names of the values from other devices that the step awaits, with their sources, in order. Elements of
    /// collectives are left out.
    pub(crate) fn awaited_names(&self) -> Vec<String> {
        let keys = self.local.awaited();
        let parsed = keys.iter().filter_map(|key| RendezvousKey::parse(key).ok());
        let values = parsed.filter(|key| !key.edge.starts_with(COLLECTIVE_EDGE));
        let mut names: Vec<String> =
            values.map(|key| format!("{} from {}", key.edge, key.src_device)).collect();
        names.extend(self.fetches.names());
        names.sort();
        names
    }

    /// Delivers a value that was pushed over a link.
    pub(crate) fn deliver_pushed(&self, from: &Arc<Inbound>, key: &Arc<str>, sent: Sent) {
        self.arrivals.record(from, key, &sent);
        if self.local.put(key, sent).is_err() {
            self.arrivals.report_consumed(key);
        }
    }

    /// Delivers a value that was piggybacked on an answer. Piggybacked values are small and not counted as
    /// bytes in flight.
    pub(crate) fn deliver_piggybacked(&self, key: &Arc<str>, sent: Sent) {
        // An error means that the step has ended and needs the value no more.
        let _ = self.local.put(key, sent);
    }

    /// Records that a sender offers the value under a key, and requests the value at once if a receive waits for it.
    pub(crate) fn record_offer(&self, from: &Arc<Inbound>, key: &Arc<str>) {
        self.arrivals.record_offer(from, key);
        if self.local.is_awaited(key) {
            self.request_offered(key);
        }
    }

    /// Requests the value under a key if its sender has offered it.
    fn request_offered(&self, key: &Arc<str>) {
        if let Some(from) = self.arrivals.take_offer(key) {
            from.request(self.step_id, key);
        }
    }

    /// Fails the receivers that wait for values over a link that has broken; the message names the peer.
    pub(crate) fn fail_receivers_of(&self, link: &Arc<Inbound>) {
        self.local.fail_receivers(|key| link.carries(key), &link.broken_error());
    }

    /// Marks the step as having sent all its values: the receiving tasks need not be notified of its end.
    pub(crate) fn succeed(&self) {
        self.pushes.succeed();
    }

    /// Aborts like [`Rendezvous::abort`], and notifies the receiving tasks unless the step has
    /// [succeeded](StepRendezvous::succeed).
    pub(crate) fn fail(&self, reason: &Error) {
        self.pushes.fail(self.step_id, reason);
        self.abort(reason.clone());
    }

    /// Sends the values that waited for a link on this route over `link`, which has just been opened.
    pub(crate) fn link_up(&self, route: &Arc<Route>, link: &Arc<Outbound>) {
        self.pushes.link_up(self.step_id, route, link);
        for key in self.pushes.take_pending(route) {
            if let Some(sent) = self.local.take(&key) {
                self.fail_on_error(self.push(link, &key, sent));
            }
        }
        self.flush();
    }

    /// Answers a receiver's request for an offered value.
    pub(crate) fn answer_request(&self, link: &Arc<Outbound>, key: &Arc<str>) {
        if let Some(sent) = self.local.take(key) {
            self.fail_on_error(self.pushes.answer(link, self.step_id, key, &sent));
        }
        self.flush();
    }

    /// Fails the step if sending a stored value failed, because the value is lost then.
    fn fail_on_error(&self, sent: device::Result<()>) {
        if let Err(error) = sent {
            self.fail(&error);
        }
    }

    /// Returns whether the end of a route's link cancels the step: the step has sent values over it, which may be lost.
    pub(crate) fn needs_link(&self, route: &Arc<Route>, link: &Arc<Outbound>) -> bool {
        self.pushes.needs(route, link)
    }

    /// Makes the end of a route's links harmless to the step, because its task needs no more of the step's values.
    pub(crate) fn release_route(&self, route: &Arc<Route>) {
        self.pushes.release(route);
    }

    /// Drops the step's reference to a link.
    pub(crate) fn forget_link(&self, link: &Arc<Outbound>) {
        self.pushes.forget(link);
    }

    /// Sends a value over a link; if too many bytes are in flight, stores the value and offers it to the
    /// receiver.
    fn push(&self, link: &Arc<Outbound>, key: &Arc<str>, sent: Sent) -> device::Result<()> {
        self.local.check()?;
        if !self.pushes.push(link, self.step_id, key, &sent)? {
            self.local.put(key, sent)?;
            self.pushes.offer(link, self.step_id, key)?;
        }
        Ok(())
    }

    /// Returns the [`Remote`] if the receiver of the values under `key` is another task.
    fn remote_for(&self, key: &RendezvousKey) -> Option<&Remote> {
        self.remote.get().filter(|remote| !key.dst_device.starts_with(&*remote.own_prefix))
    }

    /// Sends a value to another task.
    fn send_remote(&self, remote: &Remote, key: &Arc<RendezvousKey>, sent: Sent) -> device::Result<()> {
        // A task that is not in the cluster spec may still fetch the value.
        let Some(route) = remote.peers.route_to(&key.dst_device) else { return self.local.send(key, sent) };
        if let Some(link) = route.link_or_connect(&remote.link_table) {
            return self.push(&link, &key.text, sent);
        }
        let is_stored = |key: &Arc<str>| {
            let sent = self.local.take(key);
            sent.is_some_and(|sent| self.local.put(key, sent).is_ok())
        };
        // The value is stored before its key is added, so that a new link which finds the key also finds the
        // value. A link that comes up after the value was stored and before its key was added is found below.
        self.local.send(key, sent)?;
        self.pushes.add_pending(&route, &key.text, is_stored);
        if let Some(link) = route.link() {
            self.link_up(&route, &link);
        }
        Ok(())
    }

    /// Sends a value to another task once the standby has applied all changes made before: otherwise other tasks could
    /// see the consequences of a change that is then lost.
    fn send_when_replicated(&self, primary: &Arc<Primary>, key: &Arc<RendezvousKey>, sent: Sent) {
        let bound = self.self_ref.get().and_then(Weak::upgrade).zip(self.remote.get().cloned());
        // A step that no longer exists sends no values.
        let Some((own, remote)) = bound else { return };
        let (primary, key) = (primary.clone(), key.clone());
        remote.runtime.clone().spawn(async move {
            let replicated = primary.wait_replicated(None).await.map_err(to_error);
            match replicated.and_then(|()| own.send_remote(&remote, &key, sent)) {
                Ok(()) => own.flush(),
                Err(error) => own.fail(&error),
            }
        });
    }

    /// Receives a value from another task: waits for it if the sender has a link and pushes the values for
    /// this device, or else fetches it.
    fn receive(&self, remote: &Remote, key: &Arc<RendezvousKey>, receive: Receive) {
        let peer = match remote.peers.source_of(key) {
            Ok(peer) => peer,
            Err(status) => return receive(Err(to_error(status))),
        };
        let answer = self.fetches.open(key, &peer, receive, remote.transfers.begin(self.step_id, key));
        let link = remote.link_table.inbound(key.src_incarnation);
        match link.filter(|link| remote.peers.is_own_cluster() && link.is_for(&key.dst_device)) {
            Some(link) => {
                self.await_push(key, move |result| answer.finish(result));
                if link.is_broken() {
                    self.fail_receivers_of(&link);
                }
            }
            None => self.fetch(remote, key, peer, answer),
        }
        self.request_offered(&key.text);
    }

    /// Calls `then` with the value pushed under `key` once it has arrived, and reports the value as consumed.
    fn await_push(&self, key: &Arc<RendezvousKey>, then: impl FnOnce(device::Result<Sent>) + Send + 'static) {
        let (arrivals, text) = (self.arrivals.clone(), key.text.clone());
        self.local.recv(
            key,
            Box::new(move |result| {
                arrivals.report_consumed(&text);
                then(result);
            }),
        );
    }

    /// Fetches a value over gRPC. If a link comes up meanwhile and the value is pushed first, the fetch is
    /// cancelled.
    fn fetch(&self, remote: &Remote, key: &Arc<RendezvousKey>, peer: Arc<Peer>, answer: FetchAnswer) {
        let answer = Arc::new(Mutex::new(Some(answer)));
        let (pushed, was_pushed) = (answer.clone(), CancellationToken::new());
        let on_push = was_pushed.clone();
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
                () = was_pushed.cancelled() => {}
                // The fetch has no deadline, because the step's own deadline ends it with a message that
                // names the awaited values.
                result = fetch(&peer, request, step, &key, None) => {
                    let needs_ack = result.as_ref().is_ok_and(|reply| reply.require_ack);
                    let answer = answer.lock().take();
                    if let Some(answer) = answer {
                        answer.complete(result);
                    }
                    if needs_ack {
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
            None => self.send_remote(remote, key, sent),
            Some(primary) => {
                self.send_when_replicated(primary, key, sent);
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

    fn can_share_with_peer(
        &self,
        key: &Arc<RendezvousKey>,
        device: &Arc<Device>,
        tensor: &DeviceTensor,
    ) -> bool {
        // Values of a replicated task are not shared with the peer, because a value may have to wait for the standby,
        // and it waits in host memory.
        let remote = self.remote_for(key).filter(|remote| remote.primary.is_none());
        let Some(remote) = remote.filter(|_| tensor.memory.len() >= peer_buffer::MIN_SHARED_BYTES) else {
            return false;
        };
        let route = remote.peers.route_to(&key.dst_device);
        let link = route.and_then(|route| route.link_or_connect(&remote.link_table));
        link.is_some_and(|link| link.check_access(key, device, tensor))
    }

    fn flush(&self) {
        self.pushes.flush();
    }

    fn abort(&self, reason: Error) {
        self.fetches.end(&reason);
        self.local.abort(reason);
        self.arrivals.clear();
    }
}
