//! Events as rows of a database: each value of a summary becomes a tensor, in the form that TensorBoard's plugins read.

use super::{Metadata, SummaryDatabase, TaggedTensor, now};
use bytes::Bytes;
use checkpoint::proto::{Field, Fields, Malformed};
use device::{Error, Result};
use graph::{Shape, Tensor};

/// The fields of an `Event` message that a database holds.
#[derive(Default)]
struct Event<'a> {
    time: f64,
    step: i64,
    graph: Option<&'a [u8]>,
    summary: Option<&'a [u8]>,
}

impl<'a> Event<'a> {
    fn parse(message: &'a [u8]) -> std::result::Result<Event<'a>, Malformed> {
        let mut event = Event::default();
        for field in Fields::of(message) {
            match field? {
                (1, Field::Fixed64(bits)) => {
                    let time = f64::from_bits(bits);
                    event.time = if time.is_finite() { time } else { now() };
                }
                (2, value) => event.step = value.int()?,
                (4, value) => (event.graph, event.summary) = (Some(value.bytes()?), None),
                (5, value) => (event.graph, event.summary) = (None, Some(value.bytes()?)),
                _ => {}
            }
        }
        Ok(event)
    }
}

fn malformed(_: Malformed) -> Error {
    Error::invalid("bad proto")
}

impl SummaryDatabase {
    /// Writes the summary or the graph of an encoded `Event`; other events have no rows.
    ///
    /// # Errors
    /// `InvalidArgument` for malformed messages, `Unimplemented` for tensors of types that databases do not hold,
    /// `DataLoss` for a graph whose nodes have inputs that it lacks.
    pub(crate) fn write_event(&self, message: &[u8]) -> Result<()> {
        let event = Event::parse(message).map_err(malformed)?;
        if let Some(graph) = event.graph {
            return self.write_graph(event.time, graph);
        }
        for field in Fields::of(event.summary.unwrap_or_default()) {
            if let (1, value) = field.map_err(malformed)?
                && let Some(tagged) = tagged_tensor(value.bytes().map_err(malformed)?)?
            {
                self.write_at(event.time, event.step, &tagged)?;
            }
        }
        Ok(())
    }

    fn write_graph(&self, time: f64, graph: &[u8]) -> Result<()> {
        self.with_open(|open| {
            open.start_run(&self.settings, time)?;
            open.in_transaction(|open| open.write_graph(graph, now()))
        })
    }
}

impl Metadata {
    /// Reads a `SummaryMetadata` message.
    ///
    /// # Errors
    /// `InvalidArgument` if the message is malformed.
    pub(crate) fn parse(message: &[u8]) -> Result<Metadata> {
        let copied = |value: Field<'_>| value.bytes().map(Bytes::copy_from_slice).map_err(malformed);
        let mut metadata = Metadata::default();
        for field in Fields::of(message) {
            match field.map_err(malformed)? {
                (1, plugin) => {
                    for field in plugin.fields().map_err(malformed)? {
                        match field.map_err(malformed)? {
                            (1, name) => metadata.plugin = copied(name)?,
                            (2, content) => metadata.plugin_data = copied(content)?,
                            _ => {}
                        }
                    }
                }
                (2, name) => metadata.display_name = copied(name)?,
                (3, description) => metadata.description = copied(description)?,
                _ => {}
            }
        }
        Ok(metadata)
    }

    /// Returns the metadata with the plugin `name`, unless a plugin is set.
    fn or_plugin(self, name: &'static str) -> Metadata {
        match self.plugin.is_empty() {
            true => Metadata { plugin: Bytes::from_static(name.as_bytes()), ..self },
            false => self,
        }
    }
}

/// Returns the tensor of an encoded value of a summary, or `None` if the value is of a kind without tensor.
fn tagged_tensor(message: &[u8]) -> Result<Option<TaggedTensor>> {
    let (mut tag, mut metadata, mut found) = (Bytes::new(), Metadata::default(), None);
    for field in Fields::of(message) {
        let (number, value) = field.map_err(malformed)?;
        let content = || value.bytes().map_err(malformed);
        match number {
            1 => tag = Bytes::copy_from_slice(content()?),
            9 => metadata = Metadata::parse(content()?)?,
            2 => {
                let Field::Fixed32(bits) = value else { return Err(malformed(Malformed)) };
                found = Some((Tensor::scalar(f32::from_bits(bits)), Some("scalars")));
            }
            4 => found = Some((image(content()?)?, Some("images"))),
            5 => found = Some((histogram(content()?)?, Some("histograms"))),
            6 => found = Some((audio(content()?)?, Some("audio"))),
            8 => found = Some((checkpoint::tensor::decode(content()?).map_err(malformed)?, None)),
            _ => {}
        }
    }
    Ok(found.map(|(tensor, plugin)| match plugin {
        Some(plugin) => TaggedTensor { tag, tensor, metadata: metadata.or_plugin(plugin) },
        None => TaggedTensor { tag, tensor, metadata },
    }))
}

/// Returns the field `number` of a message, as bytes; empty if it is absent.
fn bytes_field(message: &[u8], number: u32) -> Result<Bytes> {
    let mut found = Bytes::new();
    for field in Fields::of(message) {
        let (at, value) = field.map_err(malformed)?;
        if at == number {
            found = Bytes::copy_from_slice(value.bytes().map_err(malformed)?);
        }
    }
    Ok(found)
}

/// Returns the width, the height and the file of an image, as strings.
fn image(message: &[u8]) -> Result<Tensor> {
    let (mut height, mut width) = (0, 0);
    for field in Fields::of(message) {
        match field.map_err(malformed)? {
            (1, value) => height = value.int().map_err(malformed)?,
            (2, value) => width = value.int().map_err(malformed)?,
            _ => {}
        }
    }
    let file = bytes_field(message, 4)?;
    Ok(Tensor::strings(vec![width.to_string().into(), height.to_string().into(), file], Shape::new(&[3])?)?)
}

/// Returns the file of a sound and an empty label, as strings.
fn audio(message: &[u8]) -> Result<Tensor> {
    Ok(Tensor::strings(vec![bytes_field(message, 4)?, Bytes::new()], Shape::new(&[1, 2])?)?)
}

/// Returns the left end, the right end and the count of each bucket of a histogram.
fn histogram(message: &[u8]) -> Result<Tensor> {
    let (mut ends, mut counts) = (Vec::new(), Vec::new());
    for field in Fields::of(message) {
        match field.map_err(malformed)? {
            (6, value) => doubles(value, &mut ends)?,
            (7, value) => doubles(value, &mut counts)?,
            _ => {}
        }
    }
    if ends.len() != counts.len() {
        device::invalid!("size mismatch: a histogram of {} ends and {} counts", ends.len(), counts.len());
    }
    // TensorFlow starts the first bucket at the least positive number, although it has no lower bound.
    let starts = std::iter::once(f64::MIN_POSITIVE).chain(ends.iter().copied());
    let rows: Vec<f64> = starts.zip(&ends).zip(&counts).flat_map(|((from, &to), &n)| [from, to, n]).collect();
    Ok(Tensor::from_slice(&rows, Shape::new(&[counts.len(), 3])?)?)
}

/// Appends the numbers of a repeated field of doubles, packed or not.
fn doubles(value: Field<'_>, out: &mut Vec<f64>) -> Result<()> {
    match value {
        Field::Fixed64(bits) => out.push(f64::from_bits(bits)),
        Field::Bytes(packed) => {
            let (numbers, rest) = packed.as_chunks();
            if !rest.is_empty() {
                return Err(malformed(Malformed));
            }
            out.extend(numbers.iter().map(|&bytes| f64::from_le_bytes(bytes)));
        }
        _ => return Err(malformed(Malformed)),
    }
    Ok(())
}
