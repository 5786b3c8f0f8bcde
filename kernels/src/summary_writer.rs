//! Kernels that write summaries to event files, on threads for blocking file operations.

use super::dataset_memory::{anonymous, handle};
use super::file::scalar_string;
use super::resource::ANONYMOUS;
use super::summary::{floats, is_message, of_audio, of_histogram, of_images, of_value, rate_of};
use crate::objects::event_file::{EventFile, Settings, event};
use crate::objects::io::{blocking, path_of};
use checkpoint::proto::Writer;
use device::handle::{HandleInput, ObjectName, single_handle};
use device::kernel::{AsyncContext, Kernel, KernelDef, KernelInit};
use device::{Error, Result};
use graph::{Code, ResourceHandle, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("SummaryWriter", &[], name),
    KernelDef::of("CreateSummaryFileWriter", &[], |_| effect(create)),
    KernelDef::absent("CreateSummaryDbWriter"),
    KernelDef::of("FlushSummaryWriter", &[], |_| on_file(|_, file| file.flush())),
    KernelDef::of("CloseSummaryWriter", &[], |_| effect(close)),
    KernelDef::of("WriteSummary", &[], |_| {
        writes_summary(|ctx| {
            let (tag, metadata) =
                (scalar_string(ctx.input(3)?, "tag")?, scalar_string(ctx.input(4)?, "metadata")?);
            if !is_message(metadata) {
                device::invalid!("summary_metadata is no SummaryMetadata");
            }
            let tensor = checkpoint::tensor::encode(ctx.input(2)?)?;
            Ok(of_value(tag, |value| _ = value.bytes(8, &tensor).string(9, metadata)))
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
        writes_summary(|ctx| {
            let tag = scalar_string(ctx.input(2)?, "tag")?;
            // If there are several elements, the first is used, like in TensorFlow.
            let Some(float) = floats(ctx.input(3)?)?.first().copied() else {
                device::invalid!("value must be a scalar, got shape {}", ctx.input(3)?.shape());
            };
            Ok(of_value(tag, |value| _ = value.fixed32(2, float.to_bits())))
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
        on_file(|ctx, file| {
            let event = scalar_string(ctx.input(1)?, "event")?;
            if !is_message(event) {
                return Err(Error::new(Code::DataLoss, "Bad tf.Event binary proto tensor string"));
            }
            file.write(event.to_vec())
        })
    }),
];

/// Makes the kernel that outputs the handle of an event file, which another op creates later.
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

const KIND: &str = <EventFile as device::resource::Resource>::KIND;

/// Makes a kernel without outputs that runs `act` on a thread for blocking file operations.
fn effect(act: impl Fn(&AsyncContext) -> Result<()> + Send + Sync + 'static) -> Result<Kernel> {
    blocking(move |ctx| act(ctx).map(|()| SmallVec::new()))
}

fn create(ctx: &AsyncContext) -> Result<()> {
    let handle = single_handle(ctx.input(0)?)?;
    let number = |i: usize| ctx.input(i)?.item::<i32>().map_err(Error::from);
    let suffix = scalar_string(ctx.input(4)?, "filename_suffix")?;
    let settings = Settings {
        folder: path_of(scalar_string(ctx.input(1)?, "logdir")?),
        suffix: String::from_utf8_lossy(suffix).into_owned(),
        // A negative value means no limit.
        max_queue: usize::try_from(number(2)?).unwrap_or(usize::MAX),
        flush_after: u64::try_from(number(3)?).ok().map(Duration::from_millis),
    };
    let store = ctx.device.resources();
    let make = || Ok(EventFile::new(settings));
    let file = store.lookup_or_create(&handle.container, &handle.name, make)?;
    // The file is opened after the resource is stored, so that the resource container is not locked during file
    // operations.
    file.open().inspect_err(|_| _ = store.remove::<EventFile>(&handle.container, &handle.name))
}

fn close(ctx: &AsyncContext) -> Result<()> {
    let handle = single_handle(ctx.input(0)?)?;
    let store = ctx.device.resources();
    // The lookup fails if the file does not exist.
    let file: Arc<EventFile> = store.lookup(&handle.container, &handle.name)?;
    store.remove::<EventFile>(&handle.container, &handle.name);
    file.flush()
}

/// Makes the kernel of an operation on the event file that input 0 refers to.
fn on_file(act: impl Fn(&AsyncContext, &EventFile) -> Result<()> + Send + Sync + 'static) -> Result<Kernel> {
    let file = HandleInput::<EventFile>::default();
    effect(move |ctx| {
        let value = ctx.inputs.first().cloned().unwrap_or_default();
        act(ctx, &*file.get(&ctx.device, &value)?)
    })
}

/// Makes the kernel that writes an event with the step number in input 1.
fn writes_step(
    content: impl Fn(&AsyncContext, &mut Writer) -> Result<()> + Send + Sync + 'static,
) -> Result<Kernel> {
    on_file(move |ctx, file| {
        let step = ctx.input(1)?.item::<i64>()?;
        let mut written = Ok(());
        let event = event(|event| {
            event.int(2, step);
            written = content(ctx, event);
        });
        written.and_then(|()| file.write(event))
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
