//! The route to one address, with the state of its link.

use super::outbound::Outbound;
use super::roads::Roads;
use parking_lot::RwLock;
use proto::channel::Peer;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which no handshake is tried with a peer that could not be reached, or whose link broke.
pub(super) const UNREACHED: Duration = Duration::from_secs(1);
/// Time for which no handshake is tried with a foreign task, or with one whose ports cannot be reached.
pub(super) const FOREIGN: Duration = Duration::from_secs(60);

/// The route to the task at one address.
#[derive(Debug)]
pub(crate) struct Road {
    pub(super) peer: Arc<Peer>,
    state: RwLock<State>,
}

/// The state of a route's link.
#[derive(Debug)]
enum State {
    /// No link; no handshake is tried before this time.
    None(Option<Instant>),
    Meeting,
    Up(Arc<Outbound>),
}

impl Road {
    pub(super) fn new(peer: Arc<Peer>) -> Arc<Road> {
        Arc::new(Road { peer, state: RwLock::new(State::None(None)) })
    }

    /// Returns the link if it is open; if there is none, begins a handshake unless it is too early for that.
    pub(crate) fn find(self: &Arc<Self>, roads: &Arc<Roads>) -> Option<Arc<Outbound>> {
        match &*self.state.read() {
            State::Up(link) => return Some(link.clone()),
            State::Meeting => return None,
            State::None(Some(until)) if Instant::now() < *until => return None,
            State::None(_) => {}
        }
        let mut state = self.state.write();
        if let State::None(_) = &*state
            && roads.may_meet()
        {
            *state = State::Meeting;
            drop(state);
            roads.meet(self);
        }
        None
    }

    /// Returns the link if it is open.
    pub(crate) fn link(&self) -> Option<Arc<Outbound>> {
        match &*self.state.read() {
            State::Up(link) => Some(link.clone()),
            _ => None,
        }
    }

    /// Sets the open link.
    pub(super) fn up(&self, link: Arc<Outbound>) {
        *self.state.write() = State::Up(link);
    }

    /// Records that there is no link, and that no handshake is to be tried during `pause`.
    pub(super) fn down(&self, pause: Duration) {
        *self.state.write() = State::None(Instant::now().checked_add(pause));
    }

    /// Returns the task and address, for messages.
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
    use crate::transport::outbound::Reach;
    use crate::transport::testing;
    use crate::worker::Worker;
    use executor::Error;
    use executor::device::{DeviceMemory, DeviceTensor};
    use executor::rendezvous::{Rendezvous, RendezvousKey, Sent};
    use graph::{Code, DType, Shape, TaskName};
    use proto::{Cluster, Status};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::runtime::Handle;

    const LONG: Duration = Duration::from_secs(30);

    type Test<T = ()> = Result<T, Box<dyn std::error::Error>>;

    #[tokio::test]
    async fn receivers_are_told_of_a_failure_whenever_their_link_comes_up() -> Test {
        let worker = Worker::new(WorkerConfig::new(TaskName::new("w", 0), Cluster::new()))?;
        let broke = Error::new(Code::Internal, "it broke");
        for (step_id, order) in (1..).zip(["fail bind up", "bind fail up", "bind up fail", "up fail bind"]) {
            let (road, mut there) = (road()?, None);
            let step = Arc::new(StepRendezvous::new(step_id));
            for event in order.split(' ') {
                match event {
                    "fail" => step.fail(&broke),
                    "bind" => {
                        step.bind(worker.remote(&*worker.sessions.get("")?), &Arc::from([road.clone()]))
                    }
                    _ => there = Some(up(&road, &step)?),
                }
            }
            let there = there.ok_or("no link")?;
            let why = Status::new(Code::Internal, "it broke").derived();
            assert_eq!(heard(&there)?, Some(Frame::Failed { step_id, why }), "{order}");
            assert_eq!(heard(&there)?, None, "{order}");
        }
        Ok(())
    }

    #[tokio::test]
    async fn what_follows_a_step_that_has_sent_everything_is_told_nobody() -> Test {
        let worker = Worker::new(WorkerConfig::new(TaskName::new("w", 0), Cluster::new()))?;
        let (road, step) = (road()?, Arc::new(StepRendezvous::new(7)));
        step.bind(worker.remote(&*worker.sessions.get("")?), &Arc::from([road.clone()]));
        let there = up(&road, &step)?;
        step.succeed();
        step.fail(&Error::new(Code::Aborted, "it was cleaned up"));
        assert_eq!(heard(&there)?, None);
        Ok(())
    }

    #[tokio::test]
    async fn what_is_sent_while_a_link_comes_up_leaves_over_it() -> Test {
        const DST: &str = "/job:w/replica:0/task:1/device:CPU:0";
        let mut cluster = Cluster::new();
        cluster.insert("w", 1, "127.0.0.1:1")?;
        let worker = Worker::new(WorkerConfig::new(TaskName::new("w", 0), cluster))?;
        let remote = worker.remote(&*worker.sessions.get("")?);
        let road = remote.peers.road_to(&Arc::from(DST)).ok_or("no road")?;
        let keys = ["a", "b", "c", "d"]
            .map(|edge| Arc::new(RendezvousKey::new("/job:w/replica:0/task:0/device:CPU:0", 1, DST, edge)));
        for step_id in 1..3000 {
            road.down(LONG);
            let step = Arc::new(StepRendezvous::new(step_id));
            step.bind(remote.clone(), &Arc::from([]));
            let (connection, there) = testing::connection()?;
            let link = Outbound::new(connection, (road.name(), 0), Reach::Nothing, Handle::current());
            let (begun, pause) = (AtomicBool::new(false), step_id % 100);
            let sent: executor::Result<()> = std::thread::scope(|scope| {
                scope.spawn(|| {
                    begun.store(true, Ordering::Release);
                    (0..pause * 20).for_each(|_| std::hint::spin_loop());
                    road.up(link.clone());
                    step.link_up(&road, &link);
                });
                while !begun.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                keys.iter().try_for_each(|key| step.send(key, Sent::dead()))
            });
            sent?;
            step.flush();
            let came = std::iter::from_fn(|| heard(&there).transpose()).collect::<Test<Vec<_>>>()?;
            assert_eq!(came.len(), keys.len(), "of step {step_id} came {came:?}");
        }
        Ok(())
    }

    /// Memory of a device that no other process can access.
    #[derive(Debug)]
    struct Unseen;

    impl DeviceMemory for Unseen {
        fn len(&self) -> usize {
            4
        }
    }

    #[tokio::test]
    async fn what_was_kept_and_cannot_be_sent_fails_its_step_and_its_receivers_hear_of_it() -> Test {
        const DST: &str = "/job:w/replica:0/task:1/device:GPU:0";
        let mut cluster = Cluster::new();
        cluster.insert("w", 1, "127.0.0.1:1")?;
        let worker = Worker::new(WorkerConfig::new(TaskName::new("w", 0), cluster))?;
        let remote = worker.remote(&*worker.sessions.get("")?);
        let road = remote.peers.road_to(&Arc::from(DST)).ok_or("no road")?;
        let key = Arc::new(RendezvousKey::new("/job:w/replica:0/task:0/device:GPU:0", 1, DST, "a"));
        road.down(LONG);
        let step = Arc::new(StepRendezvous::new(3));
        step.bind(remote, &Arc::from([road.clone()]));
        let tensor = DeviceTensor { dtype: DType::Float, shape: Shape::scalar(), memory: Arc::new(Unseen) };
        step.send(&key, Sent { value: tensor.into(), is_dead: false })?;
        let there = up(&road, &step)?;
        let Some(Frame::Failed { step_id: 3, why }) = heard(&there)? else {
            return Err("its receiver is told nothing".into());
        };
        assert!(why.message.contains("does not see") && why.message.contains(DST), "{why}");
        Ok(())
    }

    fn road() -> Test<Arc<Road>> {
        Ok(Road::new(Arc::new(Peer::new(TaskName::new("w", 1), "127.0.0.1:1", LONG, 1)?)))
    }

    /// Opens a link. Returns its other end.
    fn up(road: &Arc<Road>, step: &StepRendezvous) -> Test<UnixStream> {
        let (connection, there) = testing::connection()?;
        let link = Outbound::new(connection, (road.name(), 0), Reach::Nothing, Handle::current());
        road.up(link.clone());
        step.link_up(road, &link);
        Ok(there)
    }

    /// Returns the next frame, if one has arrived.
    fn heard(there: &UnixStream) -> Test<Option<Frame>> {
        Ok(testing::heard(there)?.map(|(frame, _)| frame))
    }
}
