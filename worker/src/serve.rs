//! The sending end of RecvTensor: waits for a value and returns it.

use crate::rendezvous::StepRendezvous;
use crate::reply::Reply;
use crate::steps::StepWait;
use crate::worker::Worker;
use device::Device;
use device::rendezvous::{RendezvousKey, Sent};
use device::{Value, transfer};
use graph::{Code, DType, DeviceName, Tensor};
use proto::{Status, pb};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Answers one RecvTensor call. If the future is dropped, the value remains for the next receiver.
///
/// # Errors
/// For a malformed key, an unknown device or an earlier incarnation of a device, a step that was cleaned up,
/// or a step that does not start in time; or the step's own failure, marked as derived.
pub(crate) async fn recv_tensor(
    worker: &Arc<Worker>,
    request: pb::RecvTensorRequest,
) -> Result<Reply, Status> {
    worker.accept_receive(request.request_id, request.step_id)?;
    let key = Arc::new(RendezvousKey::parse(&request.rendezvous_key).map_err(Status::from)?);
    let device = source_device(worker, &key)?;
    let wait = worker.steps.wait(request.step_id)?;
    let sent = receive(worker, &wait, &key).await?;
    let reply = match sent {
        Sent { is_dead: true, .. } => Reply::dead()?,
        Sent { value, .. } => Reply::new(to_host(device, value).await?),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Reply { send_start_micros: i64::try_from(now.as_micros()).unwrap_or(i64::MAX), ..reply })
}

/// Returns the sending device that a key names, after checking its incarnation.
fn source_device<'a>(worker: &'a Worker, key: &RendezvousKey) -> Result<&'a Arc<Device>, Status> {
    let device = worker.devices.find_local(&DeviceName::parse(&key.src_device)?)?;
    let (requested, here) = (key.src_incarnation, device.attributes().incarnation);
    if requested != here {
        let text = format!(
            "RecvTensor expects a different device incarnation: {requested} vs. {here}. Your worker job \
             (\"{}\") was probably restarted. Check your worker job for the reason why it was restarted.",
            worker.task()
        );
        return Err(Status::new(Code::Aborted, text).restarted());
    }
    Ok(device)
}

/// Waits for the value of a key: up to `start_deadline` while the step has not started on this worker, and
/// without limit once it has.
pub(crate) async fn receive(
    worker: &Worker,
    wait: &StepWait,
    key: &Arc<RendezvousKey>,
) -> Result<Sent, Status> {
    let mut pending = PendingReceive::new(&wait.step.rendezvous, key);
    let limit = worker.config.start_deadline;
    let received = if wait.step.has_started() {
        pending.value().await
    } else {
        match timeout(limit, pending.value()).await {
            Ok(received) => received,
            Err(_) if wait.step.has_started() => pending.value().await,
            Err(_) => return Err(never_started(worker, wait.step.id, limit)),
        }
    };
    received.map_err(|e| crate::failure(&e))
}

fn never_started(worker: &Worker, step_id: i64, limit: Duration) -> Status {
    let text = format!("no part of step {step_id} started on {} within {limit:?}", worker.task());
    Status::new(Code::DeadlineExceeded, text)
}

/// A pending receive of a value. If it is dropped, the value goes back to the rendezvous for the next
/// receive.
struct PendingReceive<'a> {
    rendezvous: &'a Arc<StepRendezvous>,
    key: &'a Arc<RendezvousKey>,
    value: oneshot::Receiver<device::Result<Sent>>,
}

impl<'a> PendingReceive<'a> {
    fn new(rendezvous: &'a Arc<StepRendezvous>, key: &'a Arc<RendezvousKey>) -> PendingReceive<'a> {
        let (sender, value) = oneshot::channel();
        // The rendezvous owns this callback, so the callback must not own the rendezvous.
        let (back, again) = (Arc::downgrade(rendezvous), key.clone());
        rendezvous.recv_local(
            key,
            Box::new(move |received| {
                if let (Err(Ok(sent)), Some(rendezvous)) = (sender.send(received), back.upgrade()) {
                    // Sending fails only if the step has failed, and then the value is not needed.
                    let _ = rendezvous.send_local(&again, sent);
                }
            }),
        );
        PendingReceive { rendezvous, key, value }
    }

    async fn value(&mut self) -> device::Result<Sent> {
        match (&mut self.value).await {
            Ok(received) => received,
            Err(_) => Err(device::Error::internal("a receive was dropped unanswered")),
        }
    }
}

impl Drop for PendingReceive<'_> {
    fn drop(&mut self) {
        self.value.close();
        if let Ok(Ok(sent)) = self.value.try_recv() {
            let _ = self.rendezvous.send_local(self.key, sent);
        }
    }
}

/// Copies a device's tensor to the host.
async fn to_host(device: &Arc<Device>, value: Value) -> Result<Tensor, Status> {
    // Most values are plain host tensors, which are returned at once.
    let value = match value {
        Value::Host(tensor) if tensor.dtype() != DType::Variant => return Ok(tensor),
        value => value,
    };
    let (sender, received_value) = oneshot::channel();
    transfer::to_host(device, value, Box::new(move |result| drop(sender.send(result))));
    match received_value.await {
        Ok(result) => result.map_err(|e| crate::failure(&e)),
        Err(_) => Err(Status::new(Code::Internal, "a transfer from a device ended without a result")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WorkerConfig;
    use crate::fetch::fetch;
    use device::rendezvous::Rendezvous;
    use graph::TaskName;
    use proto::channel::{self, Peer};
    use proto::{Cluster, convert};
    use std::error::Error;
    use std::time::Instant;

    type Test<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

    const LONG: Duration = Duration::from_secs(60);

    /// Starts a worker with its server. Returns the worker, its address, and the rendezvous key of a tensor that it
    /// sends to another task.
    async fn serving() -> Test<(Arc<Worker>, String, Arc<RendezvousKey>)> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let worker = Worker::new(WorkerConfig::new(TaskName::new("w", 1), Cluster::new()))?;
        let services = rpc::Services::default().with(worker.service());
        tokio::spawn(services.serve(channel::incoming(listener), std::future::pending()));
        let device = worker.devices()[0].clone();
        let (source, destination) = (device.name.to_string(), "/job:w/replica:0/task:0/device:CPU:0");
        let key = Arc::new(RendezvousKey::new(&*source, device.incarnation, destination, "edge_1_x"));
        Ok((worker, address, key))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_dead_value_is_an_empty_float() -> Test {
        let (worker, address, key) = serving().await?;
        let run = worker.steps.begin(3, Instant::now())?;
        let dead = || Sent { value: Value::None, is_dead: true };
        run.step.rendezvous.send(&key, dead())?;
        let mut client = proto::service::WorkerServiceClient::connect(format!("http://{address}")).await?;
        let request =
            pb::RecvTensorRequest { step_id: 3, rendezvous_key: key.text.to_string(), ..Default::default() };
        let reply = client.recv_tensor(request).await?.into_inner();
        let empty = Tensor::zeros(graph::DType::Float, graph::Shape::new(&[0])?)?;
        assert!(reply.is_dead);
        assert_eq!(convert::tensor_from_proto(reply.tensor.unwrap_or_default())?, empty);

        // A fetch by another worker of this implementation returns a dead tensor too.
        run.step.rendezvous.send(&key, dead())?;
        let mut cluster = Cluster::new();
        cluster.insert("w", 1, &address)?;
        let other = Worker::new(WorkerConfig::new(TaskName::new("w", 0), cluster))?;
        let step_run = other.steps.begin(3, Instant::now())?;
        let session = other.sessions.get("")?;
        step_run.step.rendezvous.bind(other.remote(&session), &Arc::from([]));
        let (sender, received_value) = oneshot::channel();
        step_run.step.rendezvous.recv(&key, Box::new(move |received| drop(sender.send(received))));
        let sent = timeout(LONG, received_value).await???;
        assert!(sent.is_dead && matches!(sent.value, Value::None));
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn elements_are_sent_and_received_without_copies() -> Test {
        let (worker, address, key) = serving().await?;
        let run = worker.steps.begin(3, Instant::now())?;
        let tensor = Tensor::vector(&[1u8; 5000])?;
        let (_, elements) = Reply::new(tensor.clone()).encode()?;
        let elements = elements.ok_or("the elements went with the header")?;
        assert_eq!(elements.as_ptr(), tensor.bytes()?.as_ptr());
        run.step.rendezvous.send(&key, Sent { value: Value::Host(tensor.clone()), is_dead: false })?;
        let peer = Peer::new(TaskName::new("w", 1), &address, LONG, 1)?;
        let reply = fetch(&peer, 1, 3, &key, Some(Instant::now() + LONG)).await?;
        assert_eq!(reply.tensor, tensor);
        assert_eq!(reply.tensor.bytes()?.as_ptr() as usize % graph::tensor::ALIGNMENT, 0);
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_aborted_step_ends_its_fetches() -> Test {
        let (worker, address, key) = serving().await?;
        let _run = worker.steps.begin(3, Instant::now())?;
        let mut cluster = Cluster::new();
        cluster.insert("w", 1, &address)?;
        let other = Worker::new(WorkerConfig::new(TaskName::new("w", 0), cluster))?;
        let step_run = other.steps.begin(3, Instant::now())?;
        let session = other.sessions.get("")?;
        step_run.step.rendezvous.bind(other.remote(&session), &Arc::from([]));
        let (sender, received_value) = oneshot::channel();
        step_run.step.rendezvous.recv(&key, Box::new(move |received| drop(sender.send(received))));
        assert!(step_run.step.rendezvous.awaited().contains(&address));
        step_run.step.cancel(device::Error::new(Code::Internal, "enough"));
        let failed = timeout(LONG, received_value).await??.err().ok_or("it came")?;
        assert_eq!((failed.code(), failed.is_derived()), (Code::Internal, true));
        assert_eq!(step_run.step.rendezvous.awaited(), "");
        Ok(())
    }
}
