//! Kernels of readers, for resource handles and for reference handles.

use crate::objects::io::{Compression, FixedFormat, blocking};
use crate::objects::queue::Queue;
use crate::objects::reader::{Format, Reader, Record};
use crate::objects::record_input::{RecordInput, RecordInputSettings};
use bytes::Bytes;
use device::attempt::Finish;
use device::handle;
use device::handle::{HandleInput, ObjectName, Owner};
use device::kernel::{AsyncContext, Done, Kernel, KernelDef, KernelInit};
use device::value::Value;
use device::{Error, Result};
use graph::{Shape, Tensor};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("WholeFileReader", &[], |init| make(init, Format::WholeFile)),
    KernelDef::of("WholeFileReaderV2", &[], |init| make(init, Format::WholeFile)),
    KernelDef::of("IdentityReader", &[], |init| make(init, Format::Identity)),
    KernelDef::of("IdentityReaderV2", &[], |init| make(init, Format::Identity)),
    KernelDef::of("TextLineReader", &[], text_line),
    KernelDef::of("TextLineReaderV2", &[], text_line),
    KernelDef::of("FixedLengthRecordReader", &[], fixed_length),
    KernelDef::of("FixedLengthRecordReaderV2", &[], fixed_length),
    KernelDef::of("TFRecordReader", &[], tf_record),
    KernelDef::of("TFRecordReaderV2", &[], tf_record),
    KernelDef::of("RecordInput", &[], record_input),
    KernelDef::of("ReaderRead", &[], |_| read()),
    KernelDef::of("ReaderReadV2", &[], |_| read()),
    KernelDef::of("ReaderReadUpTo", &[], |_| read_up_to()),
    KernelDef::of("ReaderReadUpToV2", &[], |_| read_up_to()),
    KernelDef::of("ReaderNumRecordsProduced", &[], |_| records_produced()),
    KernelDef::of("ReaderNumRecordsProducedV2", &[], |_| records_produced()),
    KernelDef::of("ReaderNumWorkUnitsCompleted", &[], |_| work_units_completed()),
    KernelDef::of("ReaderNumWorkUnitsCompletedV2", &[], |_| work_units_completed()),
    KernelDef::of("ReaderSerializeState", &[], |_| serialize()),
    KernelDef::of("ReaderSerializeStateV2", &[], |_| serialize()),
    KernelDef::of("ReaderRestoreState", &[], |_| restore()),
    KernelDef::of("ReaderRestoreStateV2", &[], |_| restore()),
    KernelDef::of("ReaderReset", &[], |_| reset()),
    KernelDef::of("ReaderResetV2", &[], |_| reset()),
];

fn make(init: &KernelInit<'_>, format: Format) -> Result<Kernel> {
    let node = init.node.name.clone();
    Owner::new(init, ObjectName::of(init, false)?)
        .kernel(move |_, _| Ok(Reader::new(&node, format.clone())), |_, _: &Reader| Ok(()))
}

/// Makes the kernel that outputs a batch of records in each step.
fn record_input(init: &KernelInit<'_>) -> Result<Kernel> {
    let compression = init.attr::<String>("compression_type")?;
    let settings = RecordInputSettings {
        pattern: init.attr("file_pattern")?,
        seed: init.attr("file_random_seed")?,
        shift_ratio: init.attr("file_shuffle_shift_ratio")?,
        buffer_size: positive(init, "file_buffer_size")?,
        compression: Compression::parse(compression.as_bytes())?,
    };
    positive(init, "file_parallelism")?;
    let batch = positive(init, "batch_size")?;
    let input = Mutex::new(RecordInput::new(settings));
    blocking(move |ctx| {
        let mut input = input.lock();
        let mut records = Vec::new();
        for _ in 0..batch {
            ctx.step.cancellation.check()?;
            records.push(input.next()?);
        }
        Ok(smallvec![Tensor::strings(records, Shape::new(&[batch])?)?.into()])
    })
}

/// Returns an attribute that must be a positive number.
fn positive(init: &KernelInit<'_>, attr: &str) -> Result<usize> {
    let value = init.attr::<i64>(attr)?;
    match usize::try_from(value) {
        Ok(value) if value > 0 => Ok(value),
        _ => device::invalid!("{attr} must be positive, not {value}"),
    }
}

fn text_line(init: &KernelInit<'_>) -> Result<Kernel> {
    let skipped = count(init, "skip_header_lines")?;
    make(init, Format::TextLine { skipped })
}

fn fixed_length(init: &KernelInit<'_>) -> Result<Kernel> {
    let format = FixedFormat {
        header: count(init, "header_bytes")?,
        record: count(init, "record_bytes")?,
        footer: count(init, "footer_bytes")?,
        hop: count(init, "hop_bytes")?,
    };
    make(init, Format::FixedLength { format, compression: compression(init, "encoding")? })
}

fn tf_record(init: &KernelInit<'_>) -> Result<Kernel> {
    make(init, Format::TfRecord { compression: compression(init, "compression_type")? })
}

/// Returns an attribute that is a number of bytes or lines, after checking that it is not negative.
fn count(init: &KernelInit<'_>, attr: &str) -> Result<u64> {
    let count = init.attr::<i64>(attr)?;
    u64::try_from(count).map_err(|_| Error::invalid(format!("{attr} must be >= 0 not {count}")))
}

/// Returns the compression of the files, if the op has an attribute for it.
fn compression(init: &KernelInit<'_>, attr: &str) -> Result<Compression> {
    match init.node.op.attr_spec(attr) {
        Some(_) => Compression::parse(init.attr::<String>(attr)?.as_bytes()),
        None => Ok(Compression::None),
    }
}

fn read() -> Result<Kernel> {
    read_records(
        |_| Ok(1),
        |mut records| {
            let Record { key, value } = records.pop().ok_or_else(|| Error::internal("no record was read"))?;
            Ok(smallvec![Tensor::string(key).into(), Tensor::string(value).into()])
        },
    )
}

fn read_up_to() -> Result<Kernel> {
    let max_records = |ctx: &AsyncContext| {
        let max_records = ctx.input(2)?;
        if max_records.shape().rank() != 0 {
            device::invalid!("num_records must be a scalar, got shape {}", max_records.shape());
        }
        let max_records = max_records.item::<i64>()?;
        usize::try_from(max_records)
            .or_else(|_| device::invalid!("num_records must be >= 0 not {max_records}"))
    };
    read_records(max_records, |records| {
        let shape = Shape::new(&[records.len()])?;
        let (keys, values): (Vec<Bytes>, Vec<Bytes>) = records.into_iter().map(|r| (r.key, r.value)).unzip();
        Ok(smallvec![Tensor::strings(keys, shape.clone())?.into(), Tensor::strings(values, shape)?.into()])
    })
}

/// Makes a kernel that reads up to `max_records` records; `outputs` converts them to the outputs of the node.
fn read_records(
    max_records: impl Fn(&AsyncContext) -> Result<usize> + Send + Sync + 'static,
    outputs: fn(Vec<Record>) -> Result<SmallVec<[Value; 4]>>,
) -> Result<Kernel> {
    let queue = HandleInput::<Queue>::default();
    handle::operation(move |reader: &Arc<Reader>, ctx| {
        let value = ctx.inputs.get(1).cloned().unwrap_or_default();
        let begun = queue.get(&ctx.device, &value).and_then(|queue| Ok((queue, max_records(&ctx)?)));
        let AsyncContext { step, done, .. } = ctx;
        match begun {
            Ok((queue, max_records)) => {
                let give = move |records: Result<Vec<Record>>| done(records.and_then(outputs));
                reader.read(&step.cancellation, &queue, max_records, Box::new(give));
                Ok(())
            }
            Err(error) => Err((done, error)),
        }
    })
}

/// Returns a completion callback that outputs an operation's result, converted to a tensor by `output`.
fn answer<R: 'static>(done: Done, output: fn(R) -> Tensor) -> Finish<R> {
    Box::new(move |answer| done(answer.map(|answer| smallvec![output(answer).into()])))
}

/// Returns the completion callback of a node without outputs.
fn finish_without_outputs(done: Done) -> Finish<()> {
    Box::new(move |answer| done(answer.map(|()| SmallVec::new())))
}

fn records_produced() -> Result<Kernel> {
    handle::operation(|reader: &Arc<Reader>, ctx| {
        reader.records_produced(&ctx.step.cancellation, answer(ctx.done, Tensor::from));
        Ok(())
    })
}

fn work_units_completed() -> Result<Kernel> {
    handle::operation(|reader: &Arc<Reader>, ctx| {
        reader.work_units_completed(&ctx.step.cancellation, answer(ctx.done, Tensor::from));
        Ok(())
    })
}

fn serialize() -> Result<Kernel> {
    handle::operation(|reader: &Arc<Reader>, ctx| {
        reader.serialize(&ctx.step.cancellation, answer::<Bytes>(ctx.done, Tensor::string));
        Ok(())
    })
}

fn restore() -> Result<Kernel> {
    handle::operation(|reader: &Arc<Reader>, ctx| {
        let state = ctx.input(1).and_then(|state| match (state.shape().rank(), state.as_strings()?) {
            (0, [state]) => Ok(state.clone()),
            _ => {
                Err(Error::invalid(format!("Reader state must be scalar, but had shape: {}", state.shape())))
            }
        });
        match state {
            Ok(state) => reader.restore(&ctx.step.cancellation, &state, finish_without_outputs(ctx.done)),
            Err(error) => return Err((ctx.done, error)),
        }
        Ok(())
    })
}

fn reset() -> Result<Kernel> {
    handle::operation(|reader: &Arc<Reader>, ctx| {
        reader.reset(&ctx.step.cancellation, finish_without_outputs(ctx.done));
        Ok(())
    })
}
