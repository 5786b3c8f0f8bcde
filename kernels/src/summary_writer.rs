//! Kernels that write summaries to event files and databases, on threads for blocking file operations.

use super::dataset_memory::{anonymous, handle};
use super::file::scalar_string;
use super::resource::ANONYMOUS;
use super::summary::{floats, is_message, of_audio, of_histogram, of_images, of_value, rate_of};
use crate::objects::event_file::{EventFile, Settings, event};
use crate::objects::io::{blocking, path_of};
use crate::objects::summary_database::{self, Metadata, SummaryDatabase, TaggedTensor};
use crate::objects::summary_writer::SummaryWriter;
use checkpoint::proto::Writer;
use device::handle::{HandleInput, ObjectName, single_handle};
use device::kernel::{AsyncContext, Kernel, KernelDef, KernelInit};
use device::{Error, Result};
use graph::{Code, ResourceHandle, Shape, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("SummaryWriter", &[], name),
    KernelDef::of("CreateSummaryFileWriter", &[], |_| effect(create_file)),
    KernelDef::of("CreateSummaryDbWriter", &[], |_| effect(create_database)),
    KernelDef::of("FlushSummaryWriter", &[], |_| on_writer(|_, writer| writer.flush())),
    KernelDef::of("CloseSummaryWriter", &[], |_| effect(close)),
    KernelDef::of("WriteSummary", &[], |_| {
        on_writer(|ctx, writer| {
            let (tag, metadata) =
                (scalar_string(ctx.input(3)?, "tag")?, scalar_string(ctx.input(4)?, "metadata")?);
            if !is_message(metadata) {
                device::invalid!("summary_metadata is no SummaryMetadata");
            }
            let tensor = || {
                let (tag, tensor) = (tag.clone(), ctx.input(2)?.clone());
                Ok(TaggedTensor { tag, tensor, metadata: Metadata::parse(metadata)? })
            };
            let step = ctx.input(1)?.item::<i64>()?;
            writer.write_tensor(step, tensor, || {
                let tensor = checkpoint::tensor::encode(ctx.input(2)?)?;
                let summary = of_value(tag, |value| _ = value.bytes(8, &tensor).string(9, metadata));
                Ok(summary_event(step, &summary.finish()))
            })
        })
    }),
    KernelDef::of("WriteRawProtoSummary", &[], |_| {
        writes_summary(|ctx| {
            let mut whole = Writer::new();
            for (i, summary) in ctx.input(2)?.as_strings()?.iter().enumerate() {
                if !is_message(summary) {
                    return Err(Error::new(
                        Code::DataLoss,
                        format!("Bad tf.compat.v1.Summary binary proto tensor string at index {i}"),
                    ));
                }
                whole.raw(summary);
            }
            Ok(whole)
        })
    }),
    KernelDef::of("WriteScalarSummary", &[], |_| {
        on_writer(|ctx, writer| {
            let (tag, value) = (scalar_string(ctx.input(2)?, "tag")?, ctx.input(3)?);
            // If there are several elements, the first is used, like in TensorFlow.
            let Some(float) = floats(value)?.first().copied() else {
                device::invalid!("value must be a scalar, got shape {}", value.shape());
            };
            let tensor = || {
                let first = &value.bytes()?[..value.dtype().size().unwrap_or(0)];
                let tensor = Tensor::from_bytes(value.dtype(), Shape::scalar(), first)?;
                let (tag, metadata) = (tag.clone(), Metadata::of_plugin("scalars"));
                Ok(TaggedTensor { tag, tensor, metadata })
            };
            let step = ctx.input(1)?.item::<i64>()?;
            writer.write_tensor(step, tensor, || {
                let summary = of_value(tag, |value| _ = value.fixed32(2, float.to_bits()));
                Ok(summary_event(step, &summary.finish()))
            })
        })
    }),
    KernelDef::of("WriteHistogramSummary", &[], |_| {
        writes_summary(|ctx| {
            let tag = scalar_string(ctx.input(2)?, "tag")?;
            of_histogram(tag, ctx.input(3)?, &String::from_utf8_lossy(tag), "summary histogram")
        })
    }),
    KernelDef::of("WriteImageSummary", &[], |init| {
        let max_images = init.attr::<i64>("max_images")?;
        writes_summary(move |ctx| {
            of_images(scalar_string(ctx.input(2)?, "tag")?, ctx.input(3)?, max_images, ctx.input(4)?)
        })
    }),
    KernelDef::of("WriteAudioSummary", &[], |init| {
        let max_outputs = init.attr::<i64>("max_outputs")?;
        writes_summary(move |ctx| {
            let rate = rate_of(ctx.input(4)?)?;
            of_audio(scalar_string(ctx.input(2)?, "tag")?, ctx.input(3)?, max_outputs, rate)
        })
    }),
    KernelDef::of("WriteGraphSummary", &[], |_| {
        writes_step(|ctx, event| {
            let graph = scalar_string(ctx.input(2)?, "tensor")?;
            if !is_message(graph) {
                return Err(Error::new(Code::DataLoss, "Bad tf.GraphDef binary proto tensor string"));
            }
            event.bytes(4, graph);
            Ok(())
        })
    }),
    KernelDef::of("ImportEvent", &[], |_| {
        on_writer(|ctx, writer| {
            let event = scalar_string(ctx.input(1)?, "event")?;
            if !is_message(event) {
                return Err(Error::new(Code::DataLoss, "Bad tf.Event binary proto tensor string"));
            }
            writer.write(event.to_vec())
        })
    }),
];

/// Makes the kernel that outputs the handle of a summary writer, which another op creates later.
fn name(init: &KernelInit<'_>) -> Result<Kernel> {
    let ObjectName { container, name, .. } = ObjectName::of(init, true)?;
    let shared = ResourceHandle { container, ..handle(init.device, name.to_string(), KIND) };
    let is_anonymous = *name == *ANONYMOUS;
    Kernel::sync(move |ctx| {
        let mut handle = shared.clone();
        if is_anonymous {
            handle.name = anonymous(KIND).into();
        }
        ctx.set_output(0, Tensor::resource(handle));
        Ok(())
    })
}

const KIND: &str = <SummaryWriter as device::resource::Resource>::KIND;

/// Makes a kernel without outputs that runs `act` on a thread for blocking file operations.
fn effect(act: impl Fn(&AsyncContext) -> Result<()> + Send + Sync + 'static) -> Result<Kernel> {
    blocking(move |ctx| act(ctx).map(|()| SmallVec::new()))
}

fn create_file(ctx: &AsyncContext) -> Result<()> {
    let number = |i: usize| ctx.input(i)?.item::<i32>().map_err(Error::from);
    let suffix = scalar_string(ctx.input(4)?, "filename_suffix")?;
    let settings = Settings {
        folder: path_of(scalar_string(ctx.input(1)?, "logdir")?),
        suffix: String::from_utf8_lossy(suffix).into_owned(),
        // A negative value means no limit.
        max_queue: usize::try_from(number(2)?).unwrap_or(usize::MAX),
        flush_after: u64::try_from(number(3)?).ok().map(Duration::from_millis),
    };
    create(ctx, SummaryWriter::EventFile(EventFile::new(settings)))
}

fn create_database(ctx: &AsyncContext) -> Result<()> {
    let name = |i: usize, name| scalar_string(ctx.input(i)?, name).cloned();
    let settings = summary_database::Settings {
        path: path_of(scalar_string(ctx.input(1)?, "db_uri")?),
        experiment: name(2, "experiment_name")?,
        run: name(3, "run_name")?,
        user: name(4, "user_name")?,
    };
    create(ctx, SummaryWriter::Database(SummaryDatabase::new(settings)))
}

/// Stores and opens the writer behind the handle in input 0, unless the handle has a writer.
fn create(ctx: &AsyncContext, writer: SummaryWriter) -> Result<()> {
    let handle = single_handle(ctx.input(0)?)?;
    let store = ctx.device.resources();
    let writer = store.lookup_or_create(&handle.container, &handle.name, || Ok(writer))?;
    // The file is opened after the resource is stored, so that the resource container is not locked during file
    // operations.
    writer.open().inspect_err(|_| _ = store.remove::<SummaryWriter>(&handle.container, &handle.name))
}

fn close(ctx: &AsyncContext) -> Result<()> {
    let handle = single_handle(ctx.input(0)?)?;
    let store = ctx.device.resources();
    // The lookup fails if the writer does not exist.
    let writer: Arc<SummaryWriter> = store.lookup(&handle.container, &handle.name)?;
    store.remove::<SummaryWriter>(&handle.container, &handle.name);
    writer.flush()
}

/// Makes the kernel of an operation on the summary writer that input 0 refers to.
fn on_writer(
    act: impl Fn(&AsyncContext, &SummaryWriter) -> Result<()> + Send + Sync + 'static,
) -> Result<Kernel> {
    let writer = HandleInput::<SummaryWriter>::default();
    effect(move |ctx| {
        let value = ctx.inputs.first().cloned().unwrap_or_default();
        act(ctx, &*writer.get(&ctx.device, &value)?)
    })
}

/// Makes the kernel that writes an event with the step number in input 1.
fn writes_step(
    content: impl Fn(&AsyncContext, &mut Writer) -> Result<()> + Send + Sync + 'static,
) -> Result<Kernel> {
    on_writer(move |ctx, writer| {
        let step = ctx.input(1)?.item::<i64>()?;
        let mut written = Ok(());
        let event = event(|event| {
            event.int(2, step);
            written = content(ctx, event);
        });
        written.and_then(|()| writer.write(event))
    })
}

/// Makes the kernel that writes a summary event with the step number in input 1.
fn writes_summary(
    summary: impl Fn(&AsyncContext) -> Result<Writer> + Send + Sync + 'static,
) -> Result<Kernel> {
    writes_step(move |ctx, event| {
        event.bytes(5, &summary(ctx)?.finish());
        Ok(())
    })
}

/// Returns the event of a step with an encoded summary.
fn summary_event(step: i64, summary: &[u8]) -> Vec<u8> {
    event(|event| _ = event.int(2, step).bytes(5, summary))
}
