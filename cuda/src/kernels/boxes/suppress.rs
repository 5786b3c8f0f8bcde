//! Non-maximum suppression. The number of selected boxes is known only when the GPU has run the kernel; unless
//! the outputs are padded, the kernel downloads the number and completes when the download has ended, so that
//! no thread waits.

use crate::engine::{Arguments, Function, KernelStream, Source};
use crate::kernels::support::{function, read, type_name, write};
use device::kernel::{AsyncContext, Kernel, KernelDef, KernelInit};
use device::value::Value;
use device::{Device, DeviceTensor, Error, Result};
use graph::{DType, Node, Shape};
use kernels::plan::boxes::{SuppressionLimits, box_count};
use smallvec::SmallVec;
use std::sync::Arc;

static SOURCE: Source = Source { file: "suppress.cu", text: include_str!("../suppress.cu") };

const SCORES: &[(&str, &[DType])] = &[("T", &[DType::Float, DType::Half])];

pub(in crate::kernels) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["max_output_size", "iou_threshold"],
        ..KernelDef::of("NonMaxSuppressionV2", SCORES, |init| suppress(init, false))
    },
    KernelDef {
        host_memory: &["max_output_size", "iou_threshold", "score_threshold"],
        ..KernelDef::of("NonMaxSuppressionV3", SCORES, |init| suppress(init, false))
    },
    KernelDef {
        host_memory: &["max_output_size", "iou_threshold", "score_threshold"],
        ..KernelDef::of("NonMaxSuppressionV4", SCORES, |i| suppress(i, i.attr("pad_to_max_output_size")?))
    },
    KernelDef {
        host_memory: &["max_output_size", "iou_threshold", "score_threshold", "soft_nms_sigma"],
        ..KernelDef::of("NonMaxSuppressionV5", SCORES, |i| suppress(i, i.attr("pad_to_max_output_size")?))
    },
];

/// The selected boxes: vectors of their indices and of their scores, long enough for the largest possible
/// selection, and the number of selected boxes.
struct Selection {
    numbers: DeviceTensor,
    scores: DeviceTensor,
    count: DeviceTensor,
}

/// Makes a kernel of non-maximum suppression; if `is_padded` is set, the outputs are padded to their largest
/// length.
fn suppress(init: &KernelInit<'_>, is_padded: bool) -> Result<Kernel> {
    let dtype = init.input_type(1);
    let outputs = init.outputs.len();
    let choose = function(init, &SOURCE, format!("choose<{}>", type_name(dtype)?))?;
    Kernel::asynchronous(move |ctx| {
        let selection = enqueue(&ctx, &choose, dtype, is_padded);
        let AsyncContext { node, device, done, .. } = ctx;
        match selection {
            Ok(selection) if is_padded || selection.numbers.shape.num_elements() == 0 => {
                done(Ok(selection.into_outputs(outputs)));
            }
            Ok(selection) => {
                let (count, on) = (selection.count.clone(), device.clone());
                let answer = move |count: Result<graph::Tensor>| {
                    let count: i32 = count?.item()?;
                    Ok(selection.truncated(&on, &node, count as usize)?.into_outputs(outputs))
                };
                device.processor().download(count, Box::new(move |count| done(answer(count))));
            }
            Err(error) => done(Err(error)),
        }
    })
}

/// Enqueues the kernel that selects boxes.
fn enqueue(ctx: &AsyncContext, choose: &Function, dtype: DType, is_padded: bool) -> Result<Selection> {
    let [boxes, scores] = [device_input(ctx, 0)?, device_input(ctx, 1)?];
    let parameters = (2..ctx.inputs.len()).map(|i| ctx.input(i)).collect::<Result<SmallVec<[_; 4]>>>()?;
    let limits = SuppressionLimits::of(dtype, &parameters)?;
    let n = box_count(&boxes.shape, &scores.shape)?;
    let length = if is_padded { limits.most } else { limits.most.min(n) };
    let stream = KernelStream::of(&ctx.device)?;
    let allocate = |dtype, dims: &[usize]| stream.allocate(&ctx.node.name, dtype, Shape::new(dims)?);
    let (left, known) = (allocate(DType::Float, &[n])?, allocate(DType::Int32, &[n])?);
    let numbers = allocate(DType::Int32, &[length])?;
    let scores_left = allocate(dtype, &[length])?;
    let count = allocate(DType::Int32, &[])?;
    let reals = [limits.overlap, limits.score, limits.scale()].map(|value| f64::from(value).to_bits() as i64);
    let arguments = Arguments::new()
        .address(read(boxes)?)
        .address(read(scores)?)
        .address(write(&left)?)
        .address(write(&known)?)
        .address(write(&numbers)?)
        .address(write(&scores_left)?)
        .address(write(&count)?)
        .count(n)
        .count(length)
        .structure([limits.most as i64].into_iter().chain(reals));
    stream.launch_blocks(choose, 1, &arguments)?;
    Ok(Selection { numbers, scores: scores_left, count })
}

/// Returns an input that is in the GPU's memory.
fn device_input(ctx: &AsyncContext, i: usize) -> Result<&DeviceTensor> {
    match ctx.inputs.get(i) {
        Some(Value::Device(tensor)) => Ok(tensor),
        other => Err(Error::internal(format!("{other:?} is not in the GPU's memory"))),
    }
}

impl Selection {
    /// Returns the selection with the first `count` elements only.
    fn truncated(self, device: &Device, node: &Arc<Node>, count: usize) -> Result<Selection> {
        let stream = KernelStream::of(device)?;
        let truncate = |of: DeviceTensor| {
            if of.shape.num_elements() == count {
                return Ok(of);
            }
            let out = stream.allocate(&node.name, of.dtype, Shape::new(&[count])?)?;
            stream.copy(&out, &of)?;
            Ok::<_, Error>(out)
        };
        Ok(Selection { numbers: truncate(self.numbers)?, scores: truncate(self.scores)?, count: self.count })
    }

    /// Returns the op's outputs: the boxes' indices if `outputs` is 1; the indices and the number of boxes if
    /// it is 2; the indices, the scores and the number of boxes if it is 3.
    fn into_outputs(self, outputs: usize) -> SmallVec<[Value; 4]> {
        let Selection { numbers, scores, count } = self;
        let all = [(1, numbers), (3, scores), (2, count)];
        all.into_iter().filter(|(least, _)| outputs >= *least).map(|(_, tensor)| tensor.into()).collect()
    }
}
