//! Piggybacked values: while a thread handles a message of another worker about a step (a run or a value), small values
//! that the step sends to that worker are sent on the connection of the message. They leave in one write with the other
//! frames on that connection, above all with the answer to a run, so that the other end is woken only once.
//!
//! If the connection of the message breaks, the step fails at the other end even if no value was piggybacked: the other
//! end either waits for the answer to a run on this connection or has sent values of the step over it.

use super::connection::Connection;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Largest value that is piggybacked, bytes. Larger values are in shared memory, or count against the push
/// budget.
pub(super) const MAX_VALUE: usize = 16 << 10;
/// Largest number of bytes of values that are piggybacked on one message. The push budget does not limit them.
const MAX_PER_MESSAGE: usize = 64 << 10;
/// Number of unwritten bytes of a connection above which no value is piggybacked on it, because the other end
/// does not read.
const MAX_UNWRITTEN: usize = 1 << 20;

/// The connection and the limit for piggybacked values, while a thread handles a message about a step.
struct Piggyback {
    connection: Arc<Connection>,
    /// The random number of the worker that sent the message.
    worker: u64,
    step_id: i64,
    /// Number of bytes that may still be piggybacked for the message.
    left: AtomicUsize,
}

/// Calls `handle`, which handles a message about a step that `worker` has sent on `connection`. During the call,
/// [`take`] returns the connection for the step's values.
pub(super) fn open<T>(
    connection: &Arc<Connection>,
    worker: u64,
    step_id: i64,
    handle: impl FnOnce() -> T,
) -> T {
    let left = AtomicUsize::new(MAX_PER_MESSAGE);
    visit::with_reply(Arc::new(Piggyback { connection: connection.clone(), worker, step_id, left }), handle)
}

/// Returns the connection on which a value of a step is piggybacked to a worker; `None` if this thread
/// handles no message of that worker about the step, or the value is too large.
pub(super) fn take(worker: u64, step_id: i64, bytes: usize) -> Option<Arc<Connection>> {
    let reply = visit::reply::<Piggyback>()?;
    let left = reply.left.load(Ordering::Relaxed);
    let is_same = reply.worker == worker && reply.step_id == step_id;
    let is_small = bytes <= MAX_VALUE.min(left);
    if !is_same || !is_small || reply.connection.is_broken() || reply.connection.unwritten() > MAX_UNWRITTEN {
        return None;
    }
    // A load and a store suffice, because only this thread uses `reply`.
    reply.left.store(left - bytes, Ordering::Relaxed);
    Some(reply.connection.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WorkerConfig;
    use crate::transport::PushReason;
    use crate::transport::content::Content;
    use crate::transport::frame::BlockPosition;
    use crate::transport::frame::{Frame, TensorSpec, ValueId};
    use crate::transport::handshake::Caller;
    use crate::transport::inbound::Inbound;
    use crate::transport::outbound::{Locality, Outbound};
    use crate::transport::peer_blocks::PeerBlocks;
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

    /// Returns the bytes of a frame as its sender writes them.
    fn bytes(frame: &Frame, payload: &[u8]) -> Test<Vec<u8>> {
        let mut bytes = Vec::new();
        frame.encode(payload.len(), &mut bytes)?;
        bytes.extend_from_slice(payload);
        Ok(bytes)
    }

    #[tokio::test]
    async fn small_values_are_piggybacked() -> Test {
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
        let (small, large) = (sent(10)?, sent(MAX_VALUE + 1)?);
        let dead = Sent::dead();
        open(&back, 7, 1, || [&small, &large, &dead].into_iter().try_for_each(|s| push(s).map(drop)))?;
        let elements = next_frame(&by_back)?.ok_or("nothing came back")?;
        let Value::Host(tensor) = &small.value else { return Err("not on the host".into()) };
        let spec = TensorSpec { dtype: tensor.dtype(), shape: tensor.shape().clone() };
        assert_eq!(elements, (Frame::Elements(name(), spec), vec![7; 10]));
        assert_eq!(next_frame(&by_back)?, Some((Frame::Dead(name()), Vec::new())));
        assert_eq!(next_frame(&by_back)?, None);
        assert!(next_frame(&by_link)?.is_some_and(|(_, payload)| payload.len() == MAX_VALUE + 1));
        push(&small)?;
        assert!(next_frame(&by_link)?.is_some_and(|(_, payload)| payload.len() == 10));
        assert_eq!((next_frame(&by_link)?, next_frame(&by_back)?), (None, None));
        Ok(())
    }

    #[tokio::test]
    async fn consequences_of_a_value_return_before_another_step_is_cleaned_up() -> Test {
        let worker = Worker::new(WorkerConfig::new(TaskName::new("w", 0), Cluster::new()))?;
        let (own, there) = connection()?;
        let caller = Caller { worker: 7, ..Caller::default() };
        let inbound = Inbound::new(own, caller, None);
        let (link, by_link) = link(7)?;
        let (run, other) = (worker.steps.begin(1, Instant::now())?, worker.steps.begin(2, Instant::now())?);
        let (text, answer): (_, Arc<str>) = (key("question"), key("answer").into());
        let key = Arc::new(RendezvousKey::parse(&text)?);
        let (small, pushing, steps) = (sent(10)?, link.clone(), worker.steps.clone());
        let name = ValueId { step_id: 1, key: answer.clone() };
        run.step.rendezvous.recv_local(
            &key,
            Box::new(move |_| {
                // Step 2 still has its state, although the frame that ends it arrived before this value.
                let goes =
                    steps.get(2).is_some() && pushing.push(1, &answer, &small, PushReason::Ready).is_ok();
                assert!(goes);
                pushing.flush();
            }),
        );
        // Both frames are handled in one batch, however busy the machine is.
        visit::serve(true, || {
            let mut blocks = PeerBlocks::default();
            let value = Frame::Dead(ValueId { step_id: 1, key: key.text.clone() });
            for frame in [Frame::Cleanup { step_id: 2 }, value] {
                inbound.handle(frame, Content::Nothing, &mut blocks, &worker)?;
            }
            std::io::Result::Ok(())
        })?;
        let (frame, payload) = next_frame(&there)?.ok_or("nothing came back")?;
        assert!(matches!(frame, Frame::Elements(of, _) if of == name));
        assert_eq!(payload, [7; 10]);
        assert_eq!(next_frame(&by_link)?, None);
        assert!(worker.steps.get(2).is_none());
        drop(other);
        Ok(())
    }

    #[tokio::test]
    async fn piggybacked_values_are_delivered_to_their_step() -> Test {
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
    async fn frames_that_only_senders_send_end_the_connection() -> Test {
        let name = || ValueId { step_id: 1, key: "the key".into() };
        let form = || TensorSpec { dtype: DType::Float, shape: Shape::new(&[3]).unwrap_or_default() };
        let lent = Frame::Shared {
            value_id: name(),
            spec: form(),
            at: BlockPosition { block: 1, start: 0 },
            loan: 1,
        };
        let large = TensorSpec { dtype: DType::UInt8, shape: Shape::new(&[MAX_VALUE + 1])? };
        let cases = [
            (Frame::Elements(name(), form()), 11),
            (Frame::Elements(name(), large), MAX_VALUE + 1),
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
    fn only_small_values_of_the_same_step_and_worker_are_piggybacked() -> Test {
        let (connection, _there) = connection()?;
        let connection = Arc::new(connection);
        let is_taken = |to, step_id, bytes| take(to, step_id, bytes).is_some();
        assert!(!is_taken(7, 1, 0), "nothing is heard");
        open(&connection, 7, 1, || {
            assert!(is_taken(7, 1, 0) && is_taken(7, 1, MAX_VALUE));
            assert!(!is_taken(7, 1, MAX_VALUE + 1), "it is not small");
            assert!(!is_taken(8, 1, 0), "it is for another worker");
            assert!(!is_taken(7, 2, 0), "it is of another step");
            open(&connection, 8, 2, || assert!(is_taken(8, 2, 0) && !is_taken(7, 1, 0)));
            let back = std::iter::repeat_with(|| is_taken(7, 1, MAX_VALUE)).take_while(|taken| *taken);
            assert_eq!(back.count(), MAX_PER_MESSAGE / MAX_VALUE - 1, "what goes uncounted is bounded");
            assert!(is_taken(7, 1, 0));
            connection.close();
            assert!(!is_taken(7, 1, 0), "it would be lost");
        });
        assert!(!is_taken(7, 1, 0));
        Ok(())
    }
}
