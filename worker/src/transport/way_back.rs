//! The way back: a step's small values for the process that something of the step is heard from right now, a run or a
//! value. They take the connection by which that came, and leave with what else is said there, the answer to a run above
//! all: in one write, for which the other end wakes once.
//!
//! Should that connection break, the step fails at the other end whether or not a value was on it: it waits there for the
//! answer to a run, or has sent over this connection itself.

use super::connection::Connection;
use std::cell::RefCell;
use std::sync::Arc;

/// Larger values lie in shared memory, or are counted, bytes.
pub(super) const SMALL: usize = 16 << 10;
/// What follows from one frame and goes uncounted, bytes.
const MOST: usize = 64 << 10;
/// Nothing goes back over a connection that so much waits to be written to: the other end does not read, bytes.
const STUCK: usize = 1 << 20;

thread_local! {
    /// While something is heard, where it came from.
    static OPEN: RefCell<Option<WayBack>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct WayBack {
    connection: Arc<Connection>,
    /// The worker at its other end.
    to: u64,
    step_id: i64,
    left: usize,
}

/// Does what follows from something of a step, heard by this connection from this worker.
pub(super) fn open<T>(connection: &Arc<Connection>, to: u64, step_id: i64, what: impl FnOnce() -> T) -> T {
    let way = WayBack { connection: connection.clone(), to, step_id, left: MOST };
    let _closes = Closes(OPEN.replace(Some(way)));
    what()
}

/// The connection for a value of a step to this worker, if it is to go back.
pub(super) fn take(to: u64, step_id: i64, bytes: usize) -> Option<Arc<Connection>> {
    OPEN.with_borrow_mut(|open| {
        let way = open.as_mut().filter(|way| way.to == to && way.step_id == step_id)?;
        let is_small = bytes <= SMALL.min(way.left);
        if !is_small || way.connection.is_broken() || way.connection.unwritten() > STUCK {
            return None;
        }
        way.left -= bytes;
        Some(way.connection.clone())
    })
}

/// Puts back what was there before; after a panic too.
struct Closes(Option<WayBack>);

impl Drop for Closes {
    fn drop(&mut self) {
        OPEN.set(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WorkerConfig;
    use crate::transport::PushReason;
    use crate::transport::frame::{Frame, TensorSpec, ValueId};
    use crate::transport::handshake::Caller;
    use crate::transport::inbound::Inbound;
    use crate::transport::outbound::{Locality, Outbound};
    use crate::transport::testing::{connection, next_frame};
    use crate::worker::Worker;
    use device::Value;
    use device::rendezvous::{RendezvousKey, Sent};
    use graph::{DType, Shape, TaskName, Tensor};
    use proto::Cluster;
    use std::io::Write;
    use std::time::{Duration, Instant};
    use tokio::runtime::Handle;
    use tokio::sync::oneshot;
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_secs(30);

    type Test<T = ()> = Result<T, Box<dyn std::error::Error>>;

    fn link(number: u64) -> Test<(Arc<Outbound>, std::os::unix::net::UnixStream)> {
        let (connection, there) = connection()?;
        let link =
            Outbound::new(connection, ("the peer".into(), number), Locality::Remote, Handle::current());
        Ok((link, there))
    }

    fn key(edge: &str) -> String {
        format!(
            "/job:ps/replica:0/task:0/device:CPU:0;0000000000000005;/job:w/replica:0/task:0/device:CPU:0;{edge};0:0"
        )
    }

    fn sent(len: usize) -> Test<Sent> {
        Ok(Sent { value: Value::Host(Tensor::vector(&vec![7u8; len])?), is_dead: false })
    }

    /// As who sends it would write it.
    fn bytes(frame: &Frame, payload: &[u8]) -> Test<Vec<u8>> {
        let mut bytes = Vec::new();
        frame.encode(payload.len(), &mut bytes)?;
        bytes.extend_from_slice(payload);
        Ok(bytes)
    }

    #[tokio::test]
    async fn a_link_leaves_small_values_to_the_way_back() -> Test {
        let (link, by_link) = link(7)?;
        let (back, by_back) = connection()?;
        let back = Arc::new(back);
        let key: Arc<str> = "the key".into();
        let push = |sent: &Sent| -> Test<bool> {
            let pushed = link.push(1, &key, sent, PushReason::Ready)?;
            link.flush();
            Ok(pushed)
        };
        let name = || ValueId { step_id: 1, key: key.clone() };
        let (small, large) = (sent(10)?, sent(SMALL + 1)?);
        let dead = Sent::dead();
        open(&back, 7, 1, || [&small, &large, &dead].into_iter().try_for_each(|s| push(s).map(drop)))?;
        let elements = next_frame(&by_back)?.ok_or("nothing came back")?;
        let Value::Host(tensor) = &small.value else { return Err("not on the host".into()) };
        let spec = TensorSpec { dtype: tensor.dtype(), shape: tensor.shape().clone() };
        assert_eq!(elements, (Frame::Elements(name(), spec), vec![7; 10]));
        assert_eq!(next_frame(&by_back)?, Some((Frame::Dead(name()), Vec::new())));
        assert_eq!(next_frame(&by_back)?, None);
        assert!(next_frame(&by_link)?.is_some_and(|(_, payload)| payload.len() == SMALL + 1));
        push(&small)?;
        assert!(next_frame(&by_link)?.is_some_and(|(_, payload)| payload.len() == 10));
        assert_eq!((next_frame(&by_link)?, next_frame(&by_back)?), (None, None));
        Ok(())
    }

    #[tokio::test]
    async fn what_follows_from_a_value_goes_back_and_the_end_of_another_step_can_wait() -> Test {
        let worker = Worker::new(WorkerConfig::new(TaskName::new("w", 0), Cluster::new()))?;
        let (own, mut there) = connection()?;
        let caller = Caller { worker: 7, ..Caller::default() };
        let (inbound, of) = (Inbound::new(own, caller, None), Arc::downgrade(&worker));
        tokio::spawn(async move { inbound.serve(&of).await });
        let (link, by_link) = link(7)?;
        let (run, other) = (worker.steps.begin(1, Instant::now())?, worker.steps.begin(2, Instant::now())?);
        let (text, answer): (_, Arc<str>) = (key("question"), key("answer").into());
        let key = Arc::new(RendezvousKey::parse(&text)?);
        let (small, pushing, steps) = (sent(10)?, link.clone(), worker.steps.clone());
        let name = ValueId { step_id: 1, key: answer.clone() };
        run.step.rendezvous.recv_local(
            &key,
            Box::new(move |_| {
                // The other step, whose end was heard before, is there while this is answered.
                let goes =
                    steps.get(2).is_some() && pushing.push(1, &answer, &small, PushReason::Ready).is_ok();
                assert!(goes);
                pushing.flush();
            }),
        );
        let ended = bytes(&Frame::Cleanup { step_id: 2 }, &[])?;
        let value = bytes(&Frame::Dead(ValueId { step_id: 1, key: key.text.clone() }), &[])?;
        there.write_all(&[ended, value].concat())?;
        let answered = async {
            loop {
                match next_frame(&there) {
                    Ok(None) => tokio::time::sleep(Duration::from_millis(1)).await,
                    answer => return answer,
                }
            }
        };
        let (frame, payload) = timeout(SOON, answered).await??.ok_or("nothing came back")?;
        assert!(matches!(frame, Frame::Elements(of, _) if of == name));
        assert_eq!(payload, [7; 10]);
        assert_eq!(next_frame(&by_link)?, None);
        let forgotten = async {
            while worker.steps.get(2).is_some() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(SOON, forgotten).await?;
        drop(other);
        Ok(())
    }

    #[tokio::test]
    async fn what_comes_back_is_found_by_its_step() -> Test {
        let worker = Worker::new(WorkerConfig::new(TaskName::new("w", 0), Cluster::new()))?;
        let (link, mut there) = link(7)?;
        let of = Arc::downgrade(&worker);
        tokio::spawn({
            let link = link.clone();
            async move { link.listen(&of).await }
        });
        let run = worker.steps.begin(1, Instant::now())?;
        for (edge, is_dead) in [("alive", false), ("dead", true)] {
            let key = Arc::new(RendezvousKey::parse(&key(edge))?);
            let (give, received) = oneshot::channel();
            run.step.rendezvous.recv_local(&key, Box::new(|result| drop(give.send(result))));
            let name = ValueId { step_id: 1, key: key.text.clone() };
            let spec = TensorSpec { dtype: DType::UInt8, shape: Shape::new(&[3])? };
            let frame = if is_dead { Frame::Dead(name) } else { Frame::Elements(name, spec) };
            there.write_all(&bytes(&frame, if is_dead { &[] } else { &[1, 2, 3] })?)?;
            let sent = timeout(SOON, received).await???;
            match sent {
                Sent { is_dead: true, .. } => assert!(is_dead),
                Sent { value: Value::Host(tensor), .. } => assert_eq!(tensor, Tensor::vector(&[1u8, 2, 3])?),
                Sent { value, .. } => return Err(format!("{edge}: {value:?}").into()),
            }
        }
        Ok(())
    }

    #[tokio::test]
    async fn who_sends_back_what_only_the_sender_sends_has_lost_its_way() -> Test {
        let name = || ValueId { step_id: 1, key: "the key".into() };
        let form = || TensorSpec { dtype: DType::Float, shape: Shape::new(&[3]).unwrap_or_default() };
        let lent = Frame::Shared { value_id: name(), spec: form(), block: 1, loan: 1 };
        let large = TensorSpec { dtype: DType::UInt8, shape: Shape::new(&[SMALL + 1])? };
        let cases = [
            (Frame::Elements(name(), form()), 11),
            (Frame::Elements(name(), large), SMALL + 1),
            (lent, 0),
            (Frame::Offer(name()), 0),
        ];
        for (frame, payload) in cases {
            let (link, mut there) = link(7)?;
            there.write_all(&bytes(&frame, &vec![0; payload])?)?;
            let ended = timeout(SOON, link.listen(&std::sync::Weak::new())).await?;
            assert!(ended.is_err_and(|e| e.to_string().contains("malformed")), "{frame:?}");
        }
        Ok(())
    }

    #[test]
    fn small_values_of_the_step_go_back_to_whom_it_was_heard_from() -> Test {
        let (connection, _there) = connection()?;
        let connection = Arc::new(connection);
        let is_taken = |to, step_id, bytes| take(to, step_id, bytes).is_some();
        assert!(!is_taken(7, 1, 0), "nothing is heard");
        open(&connection, 7, 1, || {
            assert!(is_taken(7, 1, 0) && is_taken(7, 1, SMALL));
            assert!(!is_taken(7, 1, SMALL + 1), "it is not small");
            assert!(!is_taken(8, 1, 0), "it is for another worker");
            assert!(!is_taken(7, 2, 0), "it is of another step");
            open(&connection, 8, 2, || assert!(is_taken(8, 2, 0) && !is_taken(7, 1, 0)));
            let back = std::iter::repeat_with(|| is_taken(7, 1, SMALL)).take_while(|taken| *taken);
            assert_eq!(back.count(), MOST / SMALL - 1, "what goes uncounted is bounded");
            assert!(is_taken(7, 1, 0));
            connection.close();
            assert!(!is_taken(7, 1, 0), "it would be lost");
        });
        assert!(!is_taken(7, 1, 0));
        Ok(())
    }
}
