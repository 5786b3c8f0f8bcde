//! The log of tensors that this worker received from other tasks, for masters that request it by the Logging
//! method.

use device::rendezvous::RendezvousKey;
use parking_lot::Mutex;
use proto::pb;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Largest number of steps whose transfers are kept in the log.
const MAX_STEPS: usize = 1000;

/// The name of the receiving device, and the statistics of one transfer to it.
type Transfer = (Arc<str>, pb::NodeExecStats);

/// The log of transfers.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    enabled: AtomicBool,
    /// The transfers by step id: those of traced steps, and those of all steps while the log is enabled.
    steps: Mutex<BTreeMap<i64, Vec<Transfer>>>,
}

impl Transfers {
    /// Enables or disables the log, and removes and returns the transfers of the requested steps. An empty
    /// request disables the log.
    pub(crate) fn control(&self, request: &pb::LoggingRequest) -> Vec<pb::LabeledStepStats> {
        let asks_nothing = !request.enable_rpc_logging && !request.clear && request.fetch_step_id.is_empty();
        if request.enable_rpc_logging {
            self.enabled.store(true, Ordering::Relaxed);
        } else if request.disable_rpc_logging || asks_nothing {
            self.enabled.store(false, Ordering::Relaxed);
        }
        let mut steps = self.steps.lock();
        let fetched = request.fetch_step_id.iter().map(|&step_id| pb::LabeledStepStats {
            step_id,
            step_stats: Some(by_device(steps.remove(&step_id).unwrap_or_default())),
        });
        let fetched = fetched.collect();
        if request.clear {
            steps.clear();
        }
        fetched
    }

    /// Records the transfers of a step from this call on, even while the log is disabled.
    pub(crate) fn trace(&self, step_id: i64) {
        entry_of(&mut self.steps.lock(), step_id);
    }

    /// Starts the timer of a transfer; `None` if the step's transfers are not recorded.
    pub(crate) fn begin(self: &Arc<Self>, step_id: i64, key: &Arc<RendezvousKey>) -> Option<TransferTimer> {
        let started = Instant::now();
        self.is_recorded(step_id).then(|| TransferTimer {
            transfers: self.clone(),
            step_id,
            key: key.clone(),
            started,
        })
    }

    fn is_recorded(&self, step_id: i64) -> bool {
        self.enabled.load(Ordering::Relaxed) || self.steps.lock().contains_key(&step_id)
    }

    /// Records the transfer of a tensor of `bytes` bytes, which was requested at `started` and has just
    /// arrived.
    fn record(&self, step_id: i64, key: &RendezvousKey, bytes: usize, started: Instant) {
        let took = started.elapsed();
        let stats = stats(key, bytes, took);
        entry_of(&mut self.steps.lock(), step_id).push((key.dst_device.clone(), stats));
    }
}

/// The timer of a transfer in progress, which records the transfer when it has finished.
#[derive(Debug)]
pub(crate) struct TransferTimer {
    transfers: Arc<Transfers>,
    step_id: i64,
    key: Arc<RendezvousKey>,
    started: Instant,
}

impl TransferTimer {
    /// Records the transfer of a tensor of `bytes` bytes.
    pub(crate) fn finish(self, bytes: usize) {
        self.transfers.record(self.step_id, &self.key, bytes, self.started);
    }
}

/// Returns the transfers of a step; a new entry drops the step with the lowest id if the log has
/// [`MAX_STEPS`] steps.
fn entry_of(steps: &mut BTreeMap<i64, Vec<Transfer>>, step_id: i64) -> &mut Vec<Transfer> {
    if steps.len() >= MAX_STEPS && !steps.contains_key(&step_id) {
        steps.pop_first();
    }
    steps.entry(step_id).or_default()
}

fn stats(key: &RendezvousKey, bytes: usize, took: Duration) -> pb::NodeExecStats {
    let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let start = end.saturating_sub(took);
    let megabits = bytes as f64 * 8.0 / took.as_secs_f64().max(1e-9) / 1e6;
    let label =
        format!("[{bytes}B] [{megabits:.6}Mb/s] {} from {} to {}", key.edge, key.src_device, key.dst_device);
    let (micros, nanos) = (took.as_micros() as i64, took.as_nanos() as i64);
    pb::NodeExecStats {
        node_name: "RecvTensor".into(),
        timeline_label: label,
        output: vec![size(bytes)],
        all_start_micros: start.as_micros() as i64,
        scheduled_micros: start.as_micros() as i64,
        op_end_rel_micros: micros,
        all_end_rel_micros: micros,
        all_start_nanos: start.as_nanos() as i64,
        scheduled_nanos: start.as_nanos() as i64,
        op_end_rel_nanos: nanos,
        all_end_rel_nanos: nanos,
        ..Default::default()
    }
}

fn size(bytes: usize) -> pb::NodeOutput {
    let requested_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    let allocation = pb::AllocationDescription { requested_bytes, ..Default::default() };
    let description =
        pb::TensorDescription { allocation_description: Some(allocation), ..Default::default() };
    pb::NodeOutput { slot: 0, tensor_description: Some(description) }
}

fn by_device(records: Vec<Transfer>) -> pb::StepStats {
    let mut devices: BTreeMap<Arc<str>, Vec<pb::NodeExecStats>> = BTreeMap::new();
    for (device, stats) in records {
        devices.entry(device).or_default().push(stats);
    }
    let dev_stats = devices.into_iter().map(|(device, node_stats)| pb::DeviceStepStats {
        device: device.to_string(),
        node_stats,
        ..Default::default()
    });
    pb::StepStats { dev_stats: dev_stats.collect() }
}
