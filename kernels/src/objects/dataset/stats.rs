//! Statistics of pipelines: datasets record values, and an aggregator collects them for summaries.

use super::state::InputState;
use super::transform::{batch_preserving, dataset, from_state};
use super::{Dataset, Element, IteratorContext};
use crate::objects::event_file::event;
use crate::objects::summary_histogram::Histogram;
use crate::objects::summary_writer::SummaryWriter;
use checkpoint::proto::Writer;
use device::Result;
use device::resource::Resource;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The way in which an aggregator hands its values on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StatsDelivery {
    /// A step asks for the summary.
    Summary,
    /// Each value is written to a summary writer, if there is one.
    Writer,
}

/// An aggregator of recorded values.
#[derive(Debug)]
pub(crate) struct StatsAggregator {
    delivery: StatsDelivery,
    state: Mutex<AggregatorState>,
}

#[derive(Debug, Default)]
struct AggregatorState {
    /// The histograms of the recorded values, by name.
    histograms: BTreeMap<String, Histogram>,
    writer: Option<Arc<SummaryWriter>>,
}

impl Resource for StatsAggregator {
    const KIND: &'static str = "tensorflow::data::StatsAggregatorResource";
}

impl StatsAggregator {
    /// Returns an aggregator without values.
    pub(crate) fn new(delivery: StatsDelivery) -> StatsAggregator {
        StatsAggregator { delivery, state: Mutex::default() }
    }

    /// Sets the summary writer to which values are written from now on. It has no effect on an aggregator of which steps
    /// ask for the summary.
    pub(crate) fn set_writer(&self, writer: Arc<SummaryWriter>) {
        if self.delivery == StatsDelivery::Writer {
            self.state.lock().writer = Some(writer);
        }
    }

    /// Adds a value; `step` is the number of elements before the one that the value belongs to.
    ///
    /// # Errors
    /// The errors of the summary writer.
    fn add(&self, name: &str, value: f64, step: i64) -> Result<()> {
        let mut state = self.state.lock();
        if !state.histograms.contains_key(name) {
            state.histograms.insert(name.to_owned(), Histogram::default());
        }
        let writer = state.writer.clone();
        let Some(histogram) = state.histograms.get_mut(name) else { return Ok(()) };
        histogram.push(value);
        let Some(writer) = writer else { return Ok(()) };
        let mut summary = Writer::new();
        write_histogram(&mut summary, name, histogram);
        drop(state);
        writer.write(event(|event| {
            event.int(2, step).bytes(5, &summary.finish());
        }))
    }

    /// Returns the `Summary` message of all values; it is empty if they are written to a summary writer.
    pub(crate) fn summary(&self) -> Vec<u8> {
        let mut summary = Writer::new();
        if self.delivery == StatsDelivery::Summary {
            for (name, histogram) in &self.state.lock().histograms {
                write_histogram(&mut summary, name, histogram);
            }
        }
        summary.finish()
    }
}

/// Appends a histogram to a `Summary` message.
fn write_histogram(summary: &mut Writer, name: &str, histogram: &Histogram) {
    summary.message(1, |value| {
        value.string(1, name.as_bytes()).message(5, |proto| histogram.write(proto));
    });
}

/// The aggregator of a part of a pipeline, and the prefix of the names in that part.
#[derive(Debug)]
pub(crate) struct StatsScope {
    pub(crate) aggregator: Arc<StatsAggregator>,
    /// The prefix; empty for none.
    pub(crate) tag: String,
}

impl StatsScope {
    /// Returns the name under which the aggregator collects the values of `tag`.
    fn name_of(&self, tag: &str) -> String {
        if self.tag.is_empty() { tag.to_owned() } else { format!("{}::{tag}", self.tag) }
    }
}

/// Returns the dataset of the input's elements; the input's datasets record their values in `scope`.
pub(crate) fn with_stats(input: Arc<Dataset>, scope: StatsScope) -> Result<Arc<Dataset>> {
    let (inner, scope) = (input.clone(), Arc::new(scope));
    dataset("SetStatsAggregator", input.spec.clone(), input.cardinality, &[&input], move |ctx| {
        inner.iterator(&ctx.recording(scope.clone()))
    })
}

/// Returns the dataset of the input's elements, which records the time in microseconds that each element took.
pub(crate) fn latency_stats(input: Arc<Dataset>, tag: String) -> Result<Arc<Dataset>> {
    recorded("LatencyStats", input, tag, |_, begun| begun.elapsed().as_micros() as f64)
}

/// Returns the dataset of the input's elements, which records the number of bytes of each element.
pub(crate) fn bytes_stats(input: Arc<Dataset>, tag: String) -> Result<Arc<Dataset>> {
    recorded("BytesProducedStats", input, tag, |element, _| element.iter().map(size_of).sum::<usize>() as f64)
}

/// Returns the number of bytes of a tensor, by TensorFlow's reckoning.
pub(super) fn size_of(tensor: &graph::Tensor) -> usize {
    /// The number of bytes of a string beside its characters.
    const STRING: usize = 24;
    match tensor.as_strings() {
        Ok(strings) => strings.iter().map(|string| STRING + string.len()).sum(),
        Err(_) => tensor.num_elements() * tensor.dtype().size().unwrap_or(0),
    }
}

/// Returns the dataset of the input's elements, which records a value for each element. `value` gets the element and the
/// time at which it was requested.
fn recorded(
    name: &'static str,
    input: Arc<Dataset>,
    tag: String,
    value: impl Fn(&Element, Instant) -> f64 + Copy + Send + Sync + 'static,
) -> Result<Arc<Dataset>> {
    let inner = input.clone();
    batch_preserving(name, input.spec.clone(), input.cardinality, &[&input], move |ctx: &IteratorContext| {
        let recorder = ctx.stats().map(|scope| (scope.aggregator.clone(), scope.name_of(&tag)));
        from_state(name, InputState::new(inner.iterator(ctx)?, 0i64), move |state, pull| {
            let begun = Instant::now();
            let Some(element) = state.next_input(pull)? else { return Ok(None) };
            if let Some((aggregator, name)) = &recorder {
                aggregator.add(name, value(&element, begun), state.value)?;
            }
            state.value += 1;
            Ok(Some(element))
        })
    })
}
