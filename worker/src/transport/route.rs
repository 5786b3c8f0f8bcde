//! The route to the task at one address, with the state of the link to it.

use super::link_table::LinkTable;
use super::outbound::Outbound;
use parking_lot::RwLock;
use proto::channel::Peer;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which no handshake is tried with a peer that could not be reached, or whose link broke.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Time for which no handshake is tried with a foreign task, or with one whose ports cannot be reached.
pub(super) const FOREIGN_RETRY_AFTER: Duration = Duration::from_secs(60);

/// The route to the task at one address.
#[derive(Debug)]
pub(crate) struct Route {
    pub(super) peer: Arc<Peer>,
    state: RwLock<RouteState>,
}

/// The state of a route's link.
#[derive(Debug)]
enum RouteState {
    /// No link; no handshake is tried before this time.
    Unlinked(Option<Instant>),
    Connecting,
    Linked(Arc<Outbound>),
}

impl Route {
    pub(super) fn new(peer: Arc<Peer>) -> Arc<Route> {
        Arc::new(Route { peer, state: RwLock::new(RouteState::Unlinked(None)) })
    }

    /// Returns the link if it is open. If there is none, begins a handshake, unless one is in progress or the
    /// pause after a failed one has not ended.
    pub(crate) fn link_or_connect(self: &Arc<Self>, link_table: &Arc<LinkTable>) -> Option<Arc<Outbound>> {
        match &*self.state.read() {
            RouteState::Linked(link) => return Some(link.clone()),
            RouteState::Connecting => return None,
            RouteState::Unlinked(Some(until)) if Instant::now() < *until => return None,
            RouteState::Unlinked(_) => {}
        }
        let mut state = self.state.write();
        if let RouteState::Unlinked(_) = &*state
            && link_table.can_connect()
        {
            *state = RouteState::Connecting;
            drop(state);
            link_table.begin_handshake(self);
        }
        None
    }

    /// Returns the route's link if it is open.
    pub(crate) fn link(&self) -> Option<Arc<Outbound>> {
        match &*self.state.read() {
            RouteState::Linked(link) => Some(link.clone()),
            _ => None,
        }
    }

    /// Records that `link` is open.
    pub(super) fn set_linked(&self, link: Arc<Outbound>) {
        *self.state.write() = RouteState::Linked(link);
    }

    /// Records that there is no link, and that no handshake is to be tried during `pause`.
    pub(super) fn set_unlinked(&self, pause: Duration) {
        *self.state.write() = RouteState::Unlinked(Instant::now().checked_add(pause));
    }

    /// Returns the task and its address, for error messages.
    pub(super) fn name(&self) -> String {
        format!("{} at {}", self.peer.task(), self.peer.address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WorkerConfig;
    use crate::rendezvous::StepRendezvous;
    use crate::transport::frame::Frame;
    use crate::transport::outbound::Locality;
    use crate::transport::testing;
    use crate::worker::Worker;
    use device::Error;
    use device::rendezvous::{Rendezvous, RendezvousKey, Sent};
    use device::{DeviceMemory, DeviceTensor};
    use graph::{Code, DType, Shape, TaskName};
    use proto::{Cluster, Status};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::runtime::Handle;

    const LONG: Duration = Duration::from_secs(30);

    type Test<T = ()> = Result<T, Box<dyn std::error::Error>>;

    #[tokio::test]
    async fn receivers_are_notified_of_a_failure_whenever_their_link_comes_up() -> Test {
        let worker = Worker::new(WorkerConfig::new(TaskName::new("w", 0), Cluster::new()))?;
        let broke = Error::new(Code::Internal, "it broke");
        for (step_id, order) in (1..).zip(["fail bind up", "bind fail up", "bind up fail", "up fail bind"]) {
            let (route, mut there) = (route()?, None);
            let step = Arc::new(StepRendezvous::new(step_id));
            for event in order.split(' ') {
                match event {
                    "fail" => step.fail(&broke),
                    "bind" => {
                        step.bind(worker.remote(&*worker.sessions.get("")?), &Arc::from([route.clone()]))
                    }
                    _ => there = Some(open_link(&route, &step)?),
                }
            }
            let there = there.ok_or("no link")?;
            let why = Status::new(Code::Internal, "it broke").derived();
            assert_eq!(next_frame(&there)?, Some(Frame::Failed { step_id, why }), "{order}");
            assert_eq!(next_frame(&there)?, None, "{order}");
        }
        Ok(())
    }

    #[tokio::test]
    async fn failures_after_everything_was_sent_are_not_reported() -> Test {
        let worker = Worker::new(WorkerConfig::new(TaskName::new("w", 0), Cluster::new()))?;
        let (route, step) = (route()?, Arc::new(StepRendezvous::new(7)));
        step.bind(worker.remote(&*worker.sessions.get("")?), &Arc::from([route.clone()]));
        let there = open_link(&route, &step)?;
        step.succeed();
        step.fail(&Error::new(Code::Aborted, "it was cleaned up"));
        assert_eq!(next_frame(&there)?, None);
        Ok(())
    }

    #[tokio::test]
    async fn values_sent_while_a_link_comes_up_are_sent_over_it() -> Test {
        const DST: &str = "/job:w/replica:0/task:1/device:CPU:0";
        let mut cluster = Cluster::new();
        cluster.insert("w", 1, "127.0.0.1:1")?;
        let worker = Worker::new(WorkerConfig::new(TaskName::new("w", 0), cluster))?;
        let remote = worker.remote(&*worker.sessions.get("")?);
        let route = remote.peers.route_to(&Arc::from(DST)).ok_or("no route")?;
        let keys = ["a", "b", "c", "d"]
            .map(|edge| Arc::new(RendezvousKey::new("/job:w/replica:0/task:0/device:CPU:0", 1, DST, edge)));
        for step_id in 1..3000 {
            route.set_unlinked(LONG);
            let step = Arc::new(StepRendezvous::new(step_id));
            step.bind(remote.clone(), &Arc::from([]));
            let (connection, there) = testing::connection()?;
            let link = Outbound::new(connection, (route.name(), 0), Locality::Remote, Handle::current());
            let (begun, pause) = (AtomicBool::new(false), step_id % 100);
            let sent: device::Result<()> = std::thread::scope(|scope| {
                scope.spawn(|| {
                    begun.store(true, Ordering::Release);
                    (0..pause * 20).for_each(|_| std::hint::spin_loop());
                    route.set_linked(link.clone());
                    step.link_up(&route, &link);
                });
                while !begun.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                keys.iter().try_for_each(|key| step.send(key, Sent::dead()))
            });
            sent?;
            step.flush();
            let frames = std::iter::from_fn(|| next_frame(&there).transpose()).collect::<Test<Vec<_>>>()?;
            assert_eq!(frames.len(), keys.len(), "step {step_id} sent {frames:?}");
        }
        Ok(())
    }

    /// Memory of a device that no other process can access.
    #[derive(Debug)]
    struct InaccessibleMemory;

    impl DeviceMemory for InaccessibleMemory {
        fn len(&self) -> usize {
            4
        }
    }

    #[tokio::test]
    async fn a_pending_value_that_cannot_be_sent_fails_the_step_and_notifies_receivers() -> Test {
        const DST: &str = "/job:w/replica:0/task:1/device:GPU:0";
        let mut cluster = Cluster::new();
        cluster.insert("w", 1, "127.0.0.1:1")?;
        let worker = Worker::new(WorkerConfig::new(TaskName::new("w", 0), cluster))?;
        let remote = worker.remote(&*worker.sessions.get("")?);
        let route = remote.peers.route_to(&Arc::from(DST)).ok_or("no route")?;
        let key = Arc::new(RendezvousKey::new("/job:w/replica:0/task:0/device:GPU:0", 1, DST, "a"));
        route.set_unlinked(LONG);
        let step = Arc::new(StepRendezvous::new(3));
        step.bind(remote, &Arc::from([route.clone()]));
        let tensor = DeviceTensor {
            dtype: DType::Float,
            shape: Shape::scalar(),
            memory: Arc::new(InaccessibleMemory),
        };
        step.send(&key, Sent { value: tensor.into(), is_dead: false })?;
        let there = open_link(&route, &step)?;
        let Some(Frame::Failed { step_id: 3, why }) = next_frame(&there)? else {
            return Err("its receiver is not notified".into());
        };
        assert!(why.message.contains("cannot access") && why.message.contains(DST), "{why}");
        Ok(())
    }

    fn route() -> Test<Arc<Route>> {
        Ok(Route::new(Arc::new(Peer::new(TaskName::new("w", 1), "127.0.0.1:1", LONG, 1)?)))
    }

    /// Opens the route's link over a socket pair. Returns the receiver's socket.
    fn open_link(route: &Arc<Route>, step: &StepRendezvous) -> Test<UnixStream> {
        let (connection, there) = testing::connection()?;
        let link = Outbound::new(connection, (route.name(), 0), Locality::Remote, Handle::current());
        route.set_linked(link.clone());
        step.link_up(route, &link);
        Ok(there)
    }

    /// Returns the next frame of the link; `None` if none has arrived.
    fn next_frame(there: &UnixStream) -> Test<Option<Frame>> {
        Ok(testing::next_frame(there)?.map(|(frame, _)| frame))
    }
}
